"""Fewer processes, stages, microbatches and samples; references to a removed one move to its neighbour."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator, Sequence

from msgspec import structs

from pipeconform.case.blocks import Head
from pipeconform.case.case import ByHand, Case, Eval, Freeze, Model, Passage, Step, Train, World
from pipeconform.case.misplans import Misplan, num_surplus
from pipeconform.case.mistakes import Mistake
from pipeconform.case.perturbations import AnyPerturbation, Perturbation, SlowLink
from pipeconform.case.simpler.scope import ORDINARY
from pipeconform.case.simpler.variant import variant

__all__ = ["fewer_microbatches", "fewer_processes", "fewer_samples", "fewer_stages", "without_bystanders"]


def fewer_processes(case: Case) -> Iterator[Case]:
    """Cases without bystanders, and with fewer replicas."""
    yield from without_bystanders(case)
    world = case.world
    if world.replicas is None or world.tensor is not None:
        return
    for num in sorted({1, 2, world.num_replicas - 1} & set(range(1, world.num_replicas))):
        gone = world.replicas.others[num - 1 :]
        kept = structs.replace(world.replicas, others=world.replicas.others[: num - 1])
        late = tuple(_of_replica(one, num) for one in world.perturbations)
        rest = structs.replace(world, replicas=kept, perturbations=tuple(dict.fromkeys(late)))
        yield from variant(case, world=_without(rest, {rank for ranks in gone for rank in ranks}))


def without_bystanders(case: Case) -> Iterator[Case]:
    """The case without ranks outside of its pipelines, if it has any."""
    world = case.world
    members = {rank for ranks in world.pipelines for rank in ranks}
    if len(members) < world.size:
        yield from variant(case, world=_without(world, set(range(world.size)) - members))


def fewer_stages(case: Case) -> Iterator[Case]:
    """Cases with fewer ranks, stages per rank, or both; the smallest first, each with few or all microbatches."""
    p, v = case.num_ranks, case.stages_per_rank
    m = max(run.num_microbatches for run in case.runs)
    for fewer_p in range(1, p + 1):
        for fewer_v in range(1, v + 1):
            if (fewer_p, fewer_v) == (p, v):
                continue
            for resized in _resized(case, fewer_p, fewer_v):
                # the schedule or the defect may need a number of microbatches that depends on the number of ranks
                for few in sorted({1, 2, fewer_p, 2 * fewer_p} & set(range(1, m))):
                    yield from _with_at_most(resized, few)
                yield resized


def fewer_microbatches(case: Case) -> Iterator[Case]:
    """Cases with fewer microbatches in every run, or only in the runs that have the same number of them."""
    numbers = sorted({run.num_microbatches for run in case.runs})
    for few in sorted({1, 2, case.num_ranks, numbers[-1] // 2, numbers[-1] - 1} & set(range(1, numbers[-1]))):
        yield from _with_at_most(case, few)
        for number in numbers if len(numbers) > 1 else ():
            if few < number:
                yield from _with_microbatches(case, {number: few})


def fewer_samples(case: Case) -> Iterator[Case]:
    """Cases with evenly split batches, and with fewer samples in every microbatch."""
    rows = sorted({run.batch_size // run.num_microbatches for run in case.runs})
    if any(run.batch_size % run.num_microbatches for run in case.runs):
        yield from _with_rows(case, {}, even=True)
    for few in range(1, rows[-1]):
        yield from _with_rows(case, {many: min(few, many) for many in rows})
        for many in rows if len(rows) > 1 else ():
            if few < many:
                yield from _with_rows(case, {many: few})


# ------------------------------------------------------------------------------------------ processes


def _without(world: World, gone: Collection[int]) -> World:
    """The world without the processes `gone`, which are in no pipeline; the others are renumbered."""
    left = [rank for rank in range(world.size) if rank not in gone]
    number = {rank: index for index, rank in enumerate(left)}

    def renumbered(pipelines: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(number[rank] for rank in ranks) for ranks in pipelines)

    replicas, tensor = world.replicas, world.tensor
    return structs.replace(
        world,
        size=len(left),
        pipeline_ranks=renumbered([world.pipeline_ranks])[0],
        replicas=replicas and structs.replace(replicas, others=renumbered(replicas.others)),
        tensor=tensor and structs.replace(tensor, others=renumbered(tensor.others)),
    )


def _shortened(world: World, p: int) -> World:
    """The world with every pipeline on its first `p` ranks."""
    gone = {rank for ranks in world.pipelines for rank in ranks[p:]}
    replicas, tensor = world.replicas, world.tensor
    shorter = structs.replace(
        world,
        pipeline_ranks=world.pipeline_ranks[:p],
        replicas=replicas and structs.replace(replicas, others=tuple(r[:p] for r in replicas.others)),
        tensor=tensor and structs.replace(tensor, others=tuple(r[:p] for r in tensor.others)),
    )
    return _without(shorter, gone)


def _of_replica(one: AnyPerturbation, num: int) -> AnyPerturbation:
    return one if one.replica is None else structs.replace(one, replica=min(one.replica, num - 1))


# ------------------------------------------------------------------------------------------ stages


def _resized(case: Case, p: int, v: int) -> Iterator[Case]:
    """The case on its first p ranks, keeping special stages first, then those at the ends of the pipeline."""
    wanted = p * v + num_surplus(case.world.misplan, num_ranks=p)
    named = _named(case)
    last = case.num_stages - 1
    # the ends of a pipeline differ from its middle
    by_rank = sorted(range(case.num_stages), key=lambda s: (s not in named, s not in (0, last), s))
    kept = sorted(by_rank[:wanted])
    world = _shortened(case.world, p)
    misplan = world.misplan
    moved = _Moved(kept)
    yield from variant(
        case,
        stages_per_rank=v,
        model=_with_stages(case.model, kept, moved),
        world=structs.replace(
            world,
            perturbations=tuple(dict.fromkeys(moved.perturbation(one, p) for one in world.perturbations)),
            misplan=None if misplan is None else moved.misplan(misplan, p),
        ),
        program=tuple(map(moved.step, case.program)),
    )


def _named(case: Case) -> set[int]:
    """The stages that differ from others, or that another part of the case refers to."""
    model = case.model
    found = {
        s
        for s, stage in enumerate(model.stages)
        if stage.frozen or any(block.frozen or not isinstance(block, ORDINARY) for block in stage.blocks)
    }
    # a skip connection passes over a stage
    found |= {s for one in model.passages for s in (one.source, one.source + 1, one.last, *one.users)}
    found |= {kwarg.stage for kwarg in model.kwargs if len(model.kwargs) < len(model.stages)} | {*model.tied}
    found |= {step.mistake.stage for step in case.trains if step.mistake is not None}
    found |= {step.by_hand.stage for step in case.trains if step.by_hand is not None and step.by_hand.mistake}
    found |= {step.stage for step in case.program if isinstance(step, Freeze)}
    found |= {one.stage for one in case.world.perturbations if isinstance(one, Perturbation)}
    return found


def _with_stages(model: Model, kept: Sequence[int], moved: _Moved) -> Model:
    kwargs = tuple(structs.replace(one, stage=moved(one.stage)) for one in model.kwargs if one.stage in kept)
    passages = tuple(map(moved.passage, model.passages))
    stages = [model.stages[s] for s in kept]
    ending = tuple(one for one in model.stages[-1].blocks[-1:] if isinstance(one, Head))
    if kept[-1] < len(model.stages) - 1:
        stages[-1] = structs.replace(stages[-1], blocks=(*stages[-1].blocks, *ending))
    return structs.replace(
        model,
        stages=tuple(stages),
        kwargs=kwargs,
        passages=tuple(one for one in passages if one is not None),
        tied=tuple(moved(s) for s in model.tied if s in kept),
    )


class _Moved:
    """The new numbers of stages when only those in `kept` are left; a removed stage maps to the next one kept."""

    def __init__(self, kept: Sequence[int]) -> None:
        self._kept = kept

    def __call__(self, stage: int) -> int:
        return min(bisect.bisect_left(self._kept, stage), len(self._kept) - 1)

    def passage(self, one: Passage) -> Passage | None:
        source, last = self(one.source), self(one.last)
        if source >= last:
            return None
        users = tuple(dict.fromkeys(map(self, one.users)))
        return structs.replace(one, source=source, last=last, users=users)

    def perturbation(self, one: AnyPerturbation, num_ranks: int) -> AnyPerturbation:
        if isinstance(one, SlowLink):
            return structs.replace(one, rank=min(one.rank, num_ranks - 1))
        return structs.replace(one, stage=self(one.stage))

    def misplan(self, one: Misplan, num_ranks: int) -> Misplan:
        rank = None if one.rank is None else min(one.rank, num_ranks - 1)
        return structs.replace(one, rank=rank, stage=min(one.stage, max(0, len(self._kept) - 2)))

    def step(self, step: Step) -> Step:
        if isinstance(step, Freeze):
            return structs.replace(step, stage=self(step.stage))
        if not isinstance(step, Train):
            return step
        hand, mistake = step.by_hand, step.mistake
        return structs.replace(
            step,
            by_hand=hand and structs.replace(hand, stage=self(hand.stage)),
            mistake=mistake and structs.replace(mistake, stage=self(mistake.stage)),
        )


# ------------------------------------------------------------------------------------------ batches


def _with_at_most(case: Case, few: int) -> Iterator[Case]:
    numbers = {run.num_microbatches for run in case.runs}
    return _with_microbatches(case, {number: min(few, number) for number in numbers})


def _with_microbatches(case: Case, new: dict[int, int]) -> Iterator[Case]:
    """The case with new numbers of microbatches, by old number; microbatches keep their sizes."""
    most = max(new.get(run.num_microbatches, run.num_microbatches) for run in case.runs)

    def changed(step: Step) -> Step:
        if not isinstance(step, Train | Eval):
            return step
        m = new.get(step.num_microbatches, step.num_microbatches)
        rows, rest = divmod(step.batch_size, step.num_microbatches)
        sized = structs.replace(step, batch_size=rows * m + min(rest, m - 1), num_microbatches=m)
        return _clipped(sized, m) if isinstance(sized, Train) else sized

    world = case.world
    late = tuple(
        structs.replace(one, microbatch=min(one.microbatch, most - 1))
        if isinstance(one, Perturbation) and one.microbatch is not None
        else one
        for one in world.perturbations
    )
    yield from variant(
        case,
        program=tuple(map(changed, case.program)),
        world=structs.replace(world, perturbations=tuple(dict.fromkeys(late))),
    )


def _clipped(step: Train, num_microbatches: int) -> Train:
    last = num_microbatches - 1
    hand: ByHand | None = step.by_hand
    mistake: Mistake | None = step.mistake
    if mistake is not None and mistake.microbatch is not None:
        mistake = structs.replace(mistake, microbatch=min(mistake.microbatch, last))
    if hand is not None:
        hand = structs.replace(hand, microbatch=min(hand.microbatch, last))
    return structs.replace(step, by_hand=hand, mistake=mistake)


def _with_rows(case: Case, new: dict[int, int], *, even: bool = False) -> Iterator[Case]:
    def changed(step: Step) -> Step:
        if not isinstance(step, Train | Eval):
            return step
        rows, rest = divmod(step.batch_size, step.num_microbatches)
        size = new.get(rows, rows) * step.num_microbatches + (0 if even else rest)
        return structs.replace(step, batch_size=size)

    yield from variant(case, program=tuple(map(changed, case.program)))
