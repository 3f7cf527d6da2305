"""The program that an exported script consists of, with four parts more; `script` writes them out as one.

It starts its own rank processes (or is started by torchrun), runs the case through the adapter, runs the same
model without any pipeline, and compares. Nothing in the five may import what is not exported: torch, the
standard library, and, inside functions, the modules that the script carries.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.export.comparison import copied, differences, fired, flat, guard_of, of, whole
from pipeconform.export.process import DIFFERENT, load_adapter, watch
from pipeconform.export.unpipelined import unpipelined

CASE = ""
WORLD = 0
SINGLE_PROCESS = False


# What one rank does.


def load_case() -> Any:
    """The case, from the text above."""
    from pipeconform.case import blocks, case, perturbations, replicas

    names = {**vars(perturbations), **vars(replicas), **vars(blocks), **vars(case)}
    return eval(CASE, names)  # noqa: S307 - our own text


# torch refuses annotations that are text
def average_bucket(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """A communication hook as a user writes it: the mean over the group."""
    _, group = state
    buffer = bucket.buffer()
    buffer.div_(group.size())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def groups_of(case: Any, description: Any, rank: int) -> tuple[Any, dict[int, Any]]:
    """This rank's pipeline group, None for a bystander, and per stage that it owns the group of its replicas.

    Every rank makes all groups, in the same order.
    """
    if SINGLE_PROCESS:
        return None, {}
    made = [(members, dist.new_group(list(members))) for members in case.world.pipelines]
    pipeline = next((group for members, group in made if rank in members), None)
    replicas = {}
    for s, owners in enumerate(placement_of(case, description) if case.world.num_replicas > 1 else ()):
        members = [ranks[min(owners)] for ranks in case.world.pipelines]
        group = dist.new_group(members)
        if rank in members:
            replicas[s] = group
    return pipeline, replicas


def placement_of(case: Any, description: Any) -> Any:
    """For each stage the set of pipeline ranks that own it."""
    from pipeconform import adapter as contract

    claim = description.capabilities.schedule(case.schedule)
    placement = contract.Placement(case.world.placement) if case.world.placement else claim.placement
    return contract.placement_of(placement, num_ranks=case.num_ranks, num_stages=case.num_stages)


def data_parallel_of(case: Any) -> Any:
    """What the plan says of replicas."""
    from pipeconform.adapter import DataParallel

    own = case.world.replicas
    if own is None:
        return None
    return DataParallel(
        wrapper=own.wrapper,
        bucket_views=own.bucket_views,
        static_graph=own.static_graph,
        find_unused=own.find_unused,
        hook=average_bucket if own.hook else None,
        nested=own.nested,
    )


def plan_of(case: Any, description: Any, rank: int) -> Any:
    """What the adapter builds a pipeline from; its groups are made here."""
    from pipeconform import adapter as contract
    from pipeconform.case import data, foreign, merges
    from pipeconform.case.case import Adam, Sgd
    from pipeconform.case.graph_layers import deferred_weights
    from pipeconform.case.whole import split_of

    group, replica_groups = groups_of(case, description, rank)
    replica = case.world.replica_of(rank)
    members = case.world.pipelines[replica or 0]
    optimizer: Any = None
    if isinstance(case.optimizer, Sgd):
        optimizer = contract.SgdStep(lr=case.optimizer.lr, momentum=case.optimizer.momentum)
    elif isinstance(case.optimizer, Adam):
        optimizer = contract.AdamStep(lr=case.optimizer.lr)

    first = case.runs[0]
    sizes = {size for run in case.runs for size in data.split_sizes(run.batch_size, run.num_microbatches)}
    position = 0 if SINGLE_PROCESS else members.index(rank) if rank in members else None
    placement = placement_of(case, description)
    mine: Any = {
        "owned": [s for s, owners in enumerate(placement) if position in owners],
        "position": position,
    }

    def builder(index: int) -> Callable[[], nn.Module]:
        return lambda: foreign.stage_for(case, index, **mine)

    return contract.Plan(
        stages=tuple(builder(s) for s in range(case.num_stages)),
        model=lambda: (foreign.model_for if case.model.split is None else foreign.annotated_for)(
            case, **mine
        ),
        split=split_of(
            case,
            lambda mark: foreign.annotated_for(case, mark, **mine),
            seed=None if 0 in mine["owned"] else foreign.stranger(case, position).seed,
        ),
        schedule=case.schedule,
        placement=placement,
        data_parallel=data_parallel_of(case),
        loss=data.loss_of(case),
        optimizer=optimizer,
        num_microbatches=first.num_microbatches,
        microbatch_size=data.split_sizes(first.batch_size, first.num_microbatches)[0],
        batch_dim=case.model.batch_dim,
        boundaries=lambda: data.boundaries_of(case),
        ranks=contract.Ranks(
            device=torch.device("cpu"),
            rank=rank,
            world_size=WORLD,
            pipeline_ranks=members,
            pipeline_rank=position,
            pipeline_group=group,
            replica=replica or 0,
            num_replicas=case.world.num_replicas,
            replica_groups=replica_groups,
        ),
        trains=bool(case.trains),
        deferred_weights=deferred_weights,
        kwarg_rules=data.kwarg_rules(case),
        output_rules=merges.rules_of(case),
        tied=data.tied_names(case),
        varying_shapes=len(sizes) > 1,
    )


def batch_for(case: Any, index: int, plan: Any, capabilities: Any) -> Any:
    """The batch of a step; what a rank does not own has other values there, NaN where the rank consumes none."""
    from pipeconform.case import foreign

    return foreign.batch_for(
        case,
        index,
        owned=plan.owned_stages(),
        position=plan.ranks.pipeline_rank,
        inputs=capabilities.inputs_consumed_by,
        targets=capabilities.targets_consumed_by,
        kwargs=capabilities.kwargs_scope,
        replica=plan.ranks.replica,
    )


def pipelined(case: Any, rank: int) -> dict[str, Any]:
    """Run the case through the adapter; every value that this rank can show, by what it is."""
    from pipeconform import adapter as contract
    from pipeconform.case import data, foreign
    from pipeconform.case.case import Eval, Load, Train, Zero
    from pipeconform.case.seeds import seed_of, seed_process

    adapter = load_adapter()
    description = adapter.describe()
    adapter.setup_process()
    seed_process(seed_of(case.seed, "rank", rank))
    plan = plan_of(case, description, rank)
    pipeline = adapter.build(plan)
    shown: dict[str, Any] = {}
    for index, step in enumerate(case.program):
        at = f"step {index}"
        if isinstance(step, Train | Eval):
            mode = contract.Mode.TRAIN if isinstance(step, Train) else contract.Mode.EVAL
            batch = batch_for(case, index, plan, description.capabilities)
            with data.autocast_of(step, device="cpu"), guard_of(step):
                result = pipeline.run(mode, batch)
            if result.microbatches is None:
                shown |= flat(f"{at}, output", result.output)
                shown |= flat(f"{at}, losses", None if result.losses is None else list(result.losses))
            shown |= flat(f"{at}, input gradients", result.input_gradients)
        elif isinstance(step, Zero):
            pipeline.apply(contract.ZeroGrad(step.set_to_none))
        elif isinstance(step, Load):
            mine: Any = {"owned": plan.owned_stages(), "position": plan.ranks.pipeline_rank}
            pipeline.apply(contract.LoadState(foreign.state_for(case, index, **mine)))
        else:
            pipeline.apply(contract.OptimizerStep())
        for s, values in pipeline.gradients().items():
            shown |= {f"{at}, {of(case, s)}gradient of {n}": copied(whole(v)) for n, v in values.items()}
        for s, values in pipeline.state().items():
            shown |= {f"{at}, {of(case, s)}{n}": copied(whole(v)) for n, v in values.items()}
        shown |= fired(case, index, pipeline.owned())
    pipeline.close()
    return shown


def rank_main(limit: float) -> int:
    """One rank: run, then let rank 0 compare what all have shown."""
    rank = int(os.environ["RANK"])
    watch(limit, rank)
    torch.set_num_threads(1)
    case = load_case()
    if not SINGLE_PROCESS:
        dist.init_process_group("gloo")
    shown: list[Any] = [pipelined(case, rank)]
    if not SINGLE_PROCESS:
        everybody: list[Any] = [None] * WORLD
        dist.all_gather_object(everybody, shown[0])
        shown = everybody
    if rank:
        return 0
    right = unpipelined(case, load_adapter().describe().capabilities)
    lines = list(differences([right[case.world.replica_of(one) or 0] for one in range(len(shown))], shown))
    print("\n".join(lines) if lines else "every value is that of the unpipelined model", flush=True)
    return DIFFERENT if lines else 0
