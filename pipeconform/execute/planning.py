"""Makes the adapter's plan from a case."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from pipeconform import adapter as contract
from pipeconform.adapter import Placement, Plan, Ranks, laid_out
from pipeconform.case.build import data, foreign, merges
from pipeconform.case.build.declared import declared_of, declares
from pipeconform.case.build.given_table import given_csv
from pipeconform.case.build.graph_layers import deferred_weights
from pipeconform.case.build.mistakes import MistakeMaker
from pipeconform.case.build.synced_norm import synchronise
from pipeconform.case.build.whole import split_of
from pipeconform.case.case import Adam, Case, Clip, Scaling, Sgd
from pipeconform.case.misplans import UNKNOWN_SCHEDULE
from pipeconform.errors import ContractError, Unsupported
from pipeconform.execute.cutting import edges_of, tensor_parallel_of
from pipeconform.execute.disturber import Disturber
from pipeconform.execute.initial import Initials
from pipeconform.execute.kept_stages import KeptStages
from pipeconform.execute.replicas import AveragingHook, data_parallel_of
from pipeconform.observe.recorder import ForwardRecorder

__all__ = ["Fittings", "owners_of", "plan_of"]


def owners_of(case: Case, description: contract.Description) -> tuple[int, ...]:
    """The pipeline rank that owns each stage, if there are several pipelines; empty if there is one."""
    claim = description.capabilities.schedule(case.schedule)
    if claim is None or not case.world.is_parallel:
        return ()
    placed = contract.placement_of(claim.placement, num_ranks=case.num_ranks, num_stages=case.num_stages)
    return tuple(min(owners) for owners in placed)


def _clipping_of(clip: Clip | None) -> contract.Clipping | None:
    if clip is None:
        return None
    return contract.Clipping(max_norm=clip.limit, norm_type=2.0 if clip.norm == "two" else math.inf)


def _scaling_of(scaling: Scaling | None) -> contract.LossScaling | None:
    if scaling is None:
        return None
    return contract.LossScaling(initial=scaling.initial, backoff=scaling.backoff)


def _example(case: Case, position: int | None, owned: frozenset[int]) -> tuple[Any, ...]:
    """The first microbatch's positional arguments; a rank that does not own the first stage has other values."""
    seen = case if 0 in owned else foreign.stranger(case, position)
    first = next(i for i, step in enumerate(case.program) if step is case.runs[0])
    micro = data.make_batch(seen, first).microbatches[0]
    return tuple(arg.detach() if isinstance(arg, Tensor) else arg for arg in micro.args)


@dataclass(frozen=True, kw_only=True)
class Fittings:
    """What the harness puts into the stages of one rank; what is None is left out."""

    recorder: ForwardRecorder | None = None
    """Watches them."""
    disturber: Disturber | None = None
    mistakes: MistakeMaker | None = None
    hook: AveragingHook | None = None
    """Averages the gradients of replicas where the user is to do so."""
    initials: Initials | None = None
    """Keeps how they were built."""
    kept: KeptStages | None = None
    """Has the modules that are used again."""


def plan_of(
    case: Case, description: contract.Description, ranks: Ranks, fittings: Fittings = Fittings()
) -> Plan:
    """The plan of `case` for one rank, with `fittings` in the stages that it builds."""
    mistakes, initials = fittings.mistakes, fittings.initials
    # what is seen while a graph is made is no step
    recorder = fittings.recorder if description.capabilities.computed_by == "modules" else None
    claim = description.capabilities.schedule(case.schedule)
    if claim is None:
        raise Unsupported(f"schedule {case.schedule!r} is not claimed")

    placement = Placement(case.world.placement) if case.world.placement else claim.placement
    misplan = case.world.misplan
    intruder = fittings.disturber if case.world.perturbations else None
    edges = edges_of(case, ranks.mesh)
    placed = laid_out(placement, num_ranks=case.num_ranks, num_stages=case.num_stages)
    position = ranks.pipeline_rank
    owned = frozenset(s for s, owners in enumerate(placed) if position in owners)

    built: dict[int, nn.Module] = {}

    def builder(index: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            if case.model.split is not None:
                raise ContractError(
                    "the plan gives the model whole (plan.split): its stages come from the front end"
                )
            module = foreign.stage_for(case, index, owned=owned, position=position)
            if fittings.kept is not None and index in owned and not case.world.is_parallel:
                module = fittings.kept.used_again(index, module)
            if initials is not None and index in owned:
                initials.note(index, module)
            module.recorder = recorder
            module.timeline = None if recorder is None else recorder.watcher
            module.intruder, module.edges = intruder, edges
            if index in ranks.replica_groups:
                synchronise(module.modules(), ranks.replica_groups[index])
            if mistakes is not None:
                mistakes.attach(index, module)
            built[index] = module
            return module

        return build

    first, loss = case.runs[0], data.loss_of(case, last=lambda: built[case.num_stages - 1])
    if edges is not None:
        loss = replace(loss, function=edges.loss(loss.function))
    if mistakes is not None:
        loss = replace(loss, function=mistakes.loss(loss.function))
    optimizer: contract.SgdStep | contract.AdamStep | None = None
    clipping: contract.Clipping | None = None
    scaling: contract.LossScaling | None = None
    if isinstance(case.optimizer, Sgd):
        optimizer = contract.SgdStep(lr=case.optimizer.lr, momentum=case.optimizer.momentum)
        clipping, scaling = _clipping_of(case.optimizer.clip), _scaling_of(case.optimizer.scaling)
    elif isinstance(case.optimizer, Adam):
        optimizer = contract.AdamStep(lr=case.optimizer.lr)
    plan = Plan(
        stages=tuple(builder(s) for s in range(case.num_stages)),
        model=lambda: (
            foreign.model_for(case, owned=owned, position=position, recorder=recorder, intruder=intruder)
            if case.model.split is None
            else foreign.annotated_for(case, owned=owned, position=position)
        ),
        split=split_of(
            case,
            lambda mark: foreign.annotated_for(case, mark, owned=owned, position=position),
            seed=None if 0 in owned else foreign.stranger(case, position).seed,
        ),
        data_parallel=data_parallel_of(case, fittings.hook),
        tensor_parallel=tensor_parallel_of(case),
        schedule=UNKNOWN_SCHEDULE if misplan is not None and misplan.how == "schedule" else case.schedule,
        placement=placed,
        loss=loss,
        optimizer=optimizer,
        num_microbatches=first.num_microbatches,
        microbatch_size=data.split_sizes(first.batch_size, first.num_microbatches)[0],
        batch_dim=case.model.batch_dim,
        boundaries=lambda: data.boundaries_of(case),
        ranks=ranks,
        trains=bool(case.trains),
        example=lambda: _example(case, position, owned),
        deferred_weights=deferred_weights,
        kwarg_rules=data.kwarg_rules(case),
        output_rules=merges.rules_of(case),
        tied=data.tied_names(case),
        clipping=clipping,
        master_weights=isinstance(case.optimizer, Sgd) and case.optimizer.masters,
        loss_scaling=scaling,
        autocast=data.autocast_dtype(case),
        float32_sums=case.model.sums_in_float32,
        table=given_csv(case),
        rewritten=case.world.rewritten,
        late_receives=case.world.late_receives,
        second_schedule=case.world.second_schedule,
        recompute=case.world.recompute,
        varying_shapes=len(
            {size for run in case.runs for size in data.split_sizes(run.batch_size, run.num_microbatches)}
        )
        > 1,
    )
    if not declares(case, position=ranks.pipeline_rank):
        return plan
    said = declared_of(case)
    return replace(plan, declared={s: said[s] for s in plan.owned_stages()})
