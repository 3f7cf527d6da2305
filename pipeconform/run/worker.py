"""What a rank process does with a case: build, run the program, record.

Runs in rank processes only; the controller names these functions and sends them MessagePack.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from msgspec import structs
from torch import nn

from pipeconform import adapter as contract
from pipeconform.adapter import Batch, Mode, Pipeline, Placement, Plan, Ranks, StepResult, placement_of
from pipeconform.case import data
from pipeconform.case.case import Adam, Case, Eval, Load, Sgd, Step, Train, Zero
from pipeconform.case.graph_layers import deferred_weights
from pipeconform.case.modules import build_model, build_stage, seed_of, seed_process
from pipeconform.case.slips import Slips, mistaken_batch
from pipeconform.case.whole import build_whole, split_of
from pipeconform.errors import ContractError, Unsupported
from pipeconform.observe.array import Array
from pipeconform.observe.memory import Memory
from pipeconform.observe.observation import (
    Answered,
    Known,
    LivedOn,
    Named,
    Observation,
    StepShown,
    Structure,
    Watched,
    arrays,
    named,
)
from pipeconform.observe.recorder import ForwardRecorder, hook_counts
from pipeconform.observe.timeline import Timeline
from pipeconform.observe.traffic.recorder import TrafficRecorder, traffic_recorder
from pipeconform.run import by_hand, examiner, implementation, mistaken, rounds
from pipeconform.run.answers import CheckedPipeline
from pipeconform.run.disturber import Disturber
from pipeconform.run.rank import RankContext
from pipeconform.run.retired import Retired

__all__ = ["Job", "describe", "execute", "plan_of"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One case for one implementation."""

    implementation: str
    case: Case
    observe: tuple[Watched, ...] = ()


_JOBS = msgspec.msgpack.Decoder(Job)  # made once, in the fork server: it takes longer than many a case


def describe(context: RankContext, payload: bytes) -> bytes:
    """Return the implementation's description as MessagePack; `payload` is its reference."""
    return msgspec.msgpack.encode(implementation.describe(payload.decode()))


@functools.lru_cache(maxsize=4)
def _adapter(reference: str, folder: str) -> tuple[contract.Adapter, contract.Description]:
    adapter = implementation.load(reference)
    description = implementation.describe(reference)
    if description.capabilities.fresh_process_per_build:
        # these processes are killed after one case: what they compiled or locked must not outlive them
        os.environ["TORCH_EXTENSIONS_DIR"] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    adapter.setup_process()
    return adapter, description


def execute(context: RankContext, payload: bytes) -> bytes:
    """Run one `Job` on this rank and return its `Observation`, both as MessagePack.

    Raises:
        ContractError: the adapter returned something its contract does not allow.
        Exception: whatever the implementation raised.
    """
    job = _JOBS.decode(payload)
    adapter, description = _adapter(job.implementation, context.folder)
    single = description.capabilities.world == "single_process"
    while _lingering():
        dist.destroy_process_group(_lingering().pop())
    _retired().release()
    lingers = "loneliness" in job.observe

    def once(case: Case) -> Observation:
        with _pipeline_group(case, context, distributed=not single, lingers=lingers) as group:
            with _hang_watch(case, job), traffic_recorder(job.observe, group) as traffic:
                observation = _run(
                    structs.replace(job, case=case), adapter, description, context, group, traffic
                )
            observation = structs.replace(observation, traffic=None if traffic is None else traffic.traffic())
            if observation.failed is not None:
                gc.collect()  # what the engine left in circles would keep its connections open
                raise mistaken.CaseEnded(observation)
            return observation

    if not job.case.is_mistaken:
        return msgspec.msgpack.encode(once(job.case))
    observation = mistaken.live_through(job.case, once, recovers="recovery" in job.observe)
    return msgspec.msgpack.encode(observation)


def _hang_watch(case: Case, job: Job) -> AbstractContextManager[object]:
    """Where stages lie on wrong ranks a hang is likely: what is recorded proves it, long before idleness does."""
    wanted = (case.world.placement or "waits" in job.observe) and "traffic" not in job.observe
    return TrafficRecorder(guard=False).recording() if wanted else nullcontext()


@functools.cache
def _lingering() -> list[dist.ProcessGroup]:
    """Groups of failed cases that stay connected until this process's next case."""
    return []


@functools.cache
def _retired() -> Retired:
    """Groups of cases that ended well; see `Retired`."""
    return Retired()


@contextmanager
def _pipeline_group(
    case: Case, context: RankContext, *, distributed: bool, lingers: bool
) -> Iterator[dist.ProcessGroup | None]:
    """A new group for every case: no message of an earlier one can reach it, and its first use is the engine's.

    `lingers` keeps it connected after an error: a closing socket would wake up whoever waits for this rank.
    """
    if not distributed:
        yield None
        return
    group = dist.new_group(list(case.world.pipeline_ranks))
    if dist.get_backend() == "gloo":
        # gloo connects here, and a rank that refuses the case at once would tear down what others still
        # connect to; the barrier is the world's, so that the group's first use remains the engine's
        dist.barrier()
    member = context.rank in case.world.pipeline_ranks
    if not member:
        yield None
        return
    try:
        yield group
    except BaseException:
        if lingers:
            _lingering().append(group)
        else:
            dist.destroy_process_group(group)
        raise
    dist.destroy_process_group(group)
    if dist.get_backend() == "gloo":
        _retired().add(group)


def plan_of(
    case: Case,
    description: contract.Description,
    ranks: Ranks,
    recorder: ForwardRecorder | None,
    disturber: Disturber | None = None,
    slips: Slips | None = None,
) -> Plan:
    """The plan of `case` for one rank; stages report to `recorder` and suffer from `disturber` and `slips`."""
    claim = description.capabilities.schedule(case.schedule)
    if claim is None:
        raise Unsupported(f"schedule {case.schedule!r} is not claimed")

    placement = Placement(case.world.placement) if case.world.placement else claim.placement
    intruder = disturber if case.world.perturbations else None

    def builder(index: int) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            if case.model.split is not None:
                raise ContractError(
                    "the plan gives the model whole (plan.split): its stages come from the front end"
                )
            module = build_stage(case, index)
            module.recorder = recorder
            module.timeline = None if recorder is None else recorder.timeline
            module.intruder = intruder
            if slips is not None:
                slips.attach(index, module)
            return module

        return build

    first, loss = case.runs[0], data.loss_of(case)
    if slips is not None:
        loss = dataclasses.replace(loss, function=slips.loss(loss.function))
    optimizer: contract.SgdStep | contract.AdamStep | None = None
    if isinstance(case.optimizer, Sgd):
        optimizer = contract.SgdStep(lr=case.optimizer.lr, momentum=case.optimizer.momentum)
    elif isinstance(case.optimizer, Adam):
        optimizer = contract.AdamStep(lr=case.optimizer.lr)
    return Plan(
        stages=tuple(builder(s) for s in range(case.num_stages)),
        model=lambda: (
            build_model(case, recorder=recorder, intruder=intruder)
            if case.model.split is None
            else build_whole(case)
        ),
        split=split_of(case),
        schedule=case.schedule,
        placement=placement_of(placement, num_ranks=case.num_ranks, num_stages=case.num_stages),
        loss=loss,
        optimizer=optimizer,
        num_microbatches=first.num_microbatches,
        microbatch_size=data.split_sizes(first.batch_size, first.num_microbatches)[0],
        batch_dim=case.model.batch_dim,
        boundaries=lambda: data.boundaries_of(case),
        ranks=ranks,
        trains=bool(case.trains),
        deferred_weights=deferred_weights,
        varying_shapes=len(
            {size for run in case.runs for size in data.split_sizes(run.batch_size, run.num_microbatches)}
        )
        > 1,
    )


def _run(
    job: Job,
    adapter: contract.Adapter,
    description: contract.Description,
    context: RankContext,
    group: dist.ProcessGroup | None,
    traffic: TrafficRecorder | None,
) -> Observation:
    case, watches = job.case, "timeline" in job.observe
    members = case.world.pipeline_ranks
    single = description.capabilities.world == "single_process"
    position = 0 if single else (members.index(context.rank) if context.rank in members else None)
    ranks = Ranks(
        device=torch.device(context.device),
        rank=context.rank,
        world_size=context.world_size,
        pipeline_ranks=members,
        pipeline_rank=position,
        pipeline_group=group,
    )
    random.seed(seed_of(case.seed, "python", context.rank))
    np.random.seed(seed_of(case.seed, "numpy", context.rank))
    seed_process(seed_of(case.seed, "rank", context.rank), device=context.device)
    memory = Memory() if "memory" in job.observe else None
    recorder = ForwardRecorder(Timeline(memory) if watches else None)
    disturber = Disturber(case.world.perturbations, rank=position)
    slips = Slips(case)
    plan = plan_of(case, description, ranks, recorder, disturber, slips)
    before = torch.get_rng_state()
    nothing = Observation(rank=context.rank, pipeline_rank=position)
    try:
        pipeline = CheckedPipeline(adapter.build(plan))
    except Unsupported as reason:
        return structs.replace(nothing, unsupported=str(reason))
    except Exception as error:
        if not case.is_mistaken or isinstance(error, ContractError):
            raise
        return structs.replace(nothing, failed=mistaken.failed_by(error, step=None))
    lived_on: LivedOn | None = None
    steps: list[StepShown] = []
    try:
        changes = tuple(_build_changes(case, pipeline, before))
        declares = contract.Feature.DECLARED_TABLE in description.capabilities.features
        table = pipeline.table() if watches and declares else None
        keys, known = _said(case, pipeline, description.capabilities)
        recorder.take()
        recorder.events()
        program = _program(
            case, plan, pipeline, description.capabilities, recorder, disturber, slips, traffic
        )
        for shown in program:
            steps.append(shown)  # noqa: PERF402 - what was there before an error is kept
        if "rounds" in job.observe:
            again = None
            if not description.capabilities.fresh_process_per_build:

                def again() -> CheckedPipeline:
                    return CheckedPipeline(adapter.build(plan))

            lived_on = rounds.live_on(
                pipeline,
                build=again,
                run=lambda one: _run_quietly(case, plan, one, description.capabilities, recorder),
                group=group,
            )
    except Exception as error:
        if not case.is_mistaken or isinstance(error, ContractError):
            raise
        steps.append(StepShown(step=len(steps), forwards=recorder.take()))
        failed = mistaken.failed_by(error, step=len(steps) - 1)
        return structs.replace(nothing, failed=failed, steps=tuple(steps))
    finally:
        if lived_on is None:  # otherwise it was closed already, twice
            pipeline.close()
    return structs.replace(
        nothing,
        build_changes=changes,
        keys=keys,
        boundaries=known,
        table=table,
        lived_on=lived_on,
        steps=tuple(steps),
    )


def _program(
    case: Case,
    plan: Plan,
    pipeline: CheckedPipeline,
    capabilities: contract.Capabilities,
    recorder: ForwardRecorder,
    disturber: Disturber,
    slips: Slips,
    traffic: TrafficRecorder | None,
) -> Iterator[StepShown]:
    for index, step in enumerate(case.program):
        recorder.step = index
        if traffic is not None:
            traffic.step = index
        with (
            examiner.telling(recorder.standing),
            disturber.during(step),
            slips.during(step, pipeline.owned()),
        ):
            yield _step(case, index, plan, pipeline, capabilities, recorder)
    if traffic is not None:
        traffic.step = len(case.program)


def _run_quietly(
    case: Case,
    plan: Plan,
    pipeline: CheckedPipeline,
    capabilities: contract.Capabilities,
    recorder: ForwardRecorder,
) -> None:
    """The program's first run once more, its gradients cleared and nothing recorded."""
    index = next(i for i, step in enumerate(case.program) if isinstance(step, Train | Eval))
    _step(case, index, plan, pipeline, capabilities, recorder)
    pipeline.apply(contract.ZeroGrad())


def _said(
    case: Case, pipeline: CheckedPipeline, capabilities: contract.Capabilities
) -> tuple[dict[int, tuple[str, ...]], tuple[Known, ...] | None]:
    """Of stages that a front end made: the keys of their state dicts, and what they will hand on."""
    if case.model.split is None:
        return {}, None
    keys = {s: tuple(module.state_dict()) for s, module in pipeline.owned().items()}
    if capabilities.tracing is None or not capabilities.tracing.knows_boundaries:
        return keys, None
    return keys, tuple(
        Known(
            producer=one.producer,
            consumer=one.consumer,
            tensors=tuple((tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in one.tensors),
        )
        for one in pipeline.boundaries()
    )


def _build_changes(case: Case, pipeline: Pipeline, rng: torch.Tensor) -> Iterator[str]:
    """Name what building changed although it must not (LIF-6)."""
    if not torch.equal(torch.get_rng_state(), rng):
        yield "the process's random state moved"
    if case.model.split is not None:
        return  # the front end makes the modules: there is nothing to compare them with
    state = pipeline.state()
    for s, live in pipeline.owned().items():
        fresh = build_stage(case, s)
        values = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        for name, value in values.items():
            shown = state.get(s, {}).get(name)
            if shown is None:
                yield f"stage {s}: state() has no {name!r}"
            elif Array.of(shown) != Array.of(value):
                yield f"stage {s}: {name} differs from its initial value"
        yield from _module_changes(s, fresh, live)


def _module_changes(s: int, fresh: nn.Module, live: nn.Module) -> Iterator[str]:
    """Compare flags, modes and hooks by name; a module that the engine wrapped shares no names and tells nothing."""
    now_parameters, now_modules = dict(live.named_parameters()), dict(live.named_modules())
    for name, was in fresh.named_parameters():
        now = now_parameters.get(name)
        if now is None:
            continue
        if was.requires_grad != now.requires_grad:
            yield f"stage {s}: requires_grad of {name} became {now.requires_grad}"
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if len(getattr(now, kind, None) or ()) != len(getattr(was, kind, None) or ()):
                yield f"stage {s}: parameter {name} has other {kind.strip('_')}"
    for name, was_module in fresh.named_modules():
        now_module = now_modules.get(name)
        if now_module is None or type(now_module) is not type(was_module):
            continue
        if not now_module.training:
            yield f"stage {s}: module {name or '(itself)'} is in eval mode"
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            added = len(getattr(now_module, kind)) - len(getattr(was_module, kind))
            if added:
                yield f"stage {s}: module {name or '(itself)'} has {added:+d} {kind.strip('_')}"


def _consumes(plan: Plan, consumers: str) -> bool:
    rank = plan.ranks.pipeline_rank
    if rank is None:
        return False
    owners = plan.placement[0] if consumers == "first_stage" else plan.placement[-1]
    return consumers == "all" or rank in owners


def _data_for(plan: Plan, capabilities: contract.Capabilities, batch: Batch) -> Batch:
    """The batch with decoys in place of whatever this rank does not consume."""
    inputs = _consumes(plan, capabilities.inputs_consumed_by)
    targets = _consumes(plan, capabilities.targets_consumed_by)
    if inputs and targets:
        return batch
    return data.assemble(
        args=batch.args if inputs else tuple(map(data.decoy_of, batch.args)),
        kwargs=batch.kwargs,
        target=batch.target if targets else data.decoy_of(batch.target),
        loss_kwargs=batch.loss_kwargs,
        batch_dim=batch.batch_dim,
        num_microbatches=batch.num_microbatches,
    )


def _step(
    case: Case,
    index: int,
    plan: Plan,
    pipeline: CheckedPipeline,
    capabilities: contract.Capabilities,
    recorder: ForwardRecorder,
) -> StepShown:
    step = case.program[index]
    result, answers, batch = StepResult(), tuple[Answered, ...](), None
    rng = torch.get_rng_state()
    if isinstance(step, Train | Eval):
        batch = _data_for(plan, capabilities, data.make_batch(case, index, device=plan.ranks.device))
        if isinstance(step, Train) and step.mistake is not None:
            batch = mistaken_batch(batch, step.mistake)
        with data.autocast_of(step, device=plan.ranks.device), _guard(step):
            if isinstance(step, Train) and step.by_hand is not None:
                answers = by_hand.drive(pipeline, plan, batch, step.by_hand)
            else:
                result = pipeline.run(Mode.TRAIN if isinstance(step, Train) else Mode.EVAL, batch)
    elif isinstance(step, Zero):
        pipeline.apply(contract.ZeroGrad(step.set_to_none))
    elif isinstance(step, Load):
        pipeline.apply(contract.LoadState(data.loaded_state(case, index)))
    else:
        pipeline.apply(contract.OptimizerStep())
    moved = not torch.equal(torch.get_rng_state(), rng)
    state, owned = pipeline.state(), pipeline.owned()
    names = {s: {name for name, _ in build_stage_names(case, s)} for s in owned}
    kwarg_gradients = {} if batch is None else data.kwarg_gradients(batch, stages=owned)
    shown = StepShown(
        step=index,
        answers=answers,
        microbatches=None if result.microbatches is None else tuple(result.microbatches),
        output=None if result.output is None else Structure.of(result.output),
        losses=None if result.losses is None else tuple(Array.of(loss) for loss in result.losses),
        loss=None if result.loss is None else Array.of(result.loss),
        input_gradients=None if result.input_gradients is None else arrays(result.input_gradients),
        kwarg_gradients={s: named(own) for s, own in kwarg_gradients.items()},
        gradients={s: named(values) for s, values in pipeline.gradients().items()},
        parameters={s: _part(values, names.get(s, set()), inside=True) for s, values in state.items()},
        buffers={s: _part(values, names.get(s, set()), inside=False) for s, values in state.items()},
        forwards=recorder.take(),
        events=recorder.events(),
        hook_counts={s: counts for s, module in owned.items() if (counts := hook_counts(module))},
        rng_moved=moved,
        gradient_norm=_norm(step, pipeline, capabilities),
        differentiable=_differentiable((result.output, result.losses, result.loss)),
    )
    del result  # results that hold a graph are their user's; whatever else is kept is the implementation's
    return structs.replace(shown, held=recorder.held(), kept=recorder.kept())


def _norm(step: Step, pipeline: CheckedPipeline, capabilities: contract.Capabilities) -> Array | None:
    """What the implementation says about the size of all gradients, after a training step."""
    # in a mistaken step another rank may have failed: nobody is there to add up with
    asked = isinstance(step, Train) and step.mistake is None
    asked = asked and contract.Feature.GRADIENT_NORM in capabilities.features
    found = pipeline.gradient_norm() if asked else None
    return None if found is None else Array.of(found)


def _differentiable(value: Any) -> bool:
    """Whether any tensor in a result requires a gradient."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, Mapping):
        return any(_differentiable(item) for item in value.values())
    return isinstance(value, tuple | list) and any(_differentiable(item) for item in value)


def _guard(step: Train | Eval) -> AbstractContextManager[object]:
    """What the caller has switched off around an evaluation."""
    match step.guard if isinstance(step, Eval) else "":
        case "no_grad":
            return torch.no_grad()
        case "inference_mode":
            return torch.inference_mode()
    return nullcontext()


@functools.lru_cache(maxsize=64)
def build_stage_names(case: Case, stage: int) -> tuple[tuple[str, bool], ...]:
    """Names of the parameters of one stage, with whether each is trainable."""
    if case.model.split is not None:
        whole = build_whole(case).named_parameters(remove_duplicate=False)
        return tuple((name, p.requires_grad) for name, p in whole)
    return tuple((name, p.requires_grad) for name, p in build_stage(case, stage).named_parameters())


def _part(values: Mapping[str, Any], parameters: set[str], *, inside: bool) -> Named:
    return named({name: value for name, value in values.items() if (name in parameters) is inside})
