"""Stages that are cut over ranks, and tensors between stages or in a batch that are."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Optimize, Step, World, Zero
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.tensor_parallel import Others, claim_of, cut, with_whole_stages
from pipeconform.case.focus import Focus
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.claims import Feature


def _cut(d: Drawing, others: Others) -> TensorParallel:
    claim = claim_of(d)
    whole = TensorParallel(others=others, maps=d.pick(claim.maps))
    if not claim.sequence or d.boundary.max_ndim < 3:
        return whole
    return d.pick([whole, TensorParallel(others=others, maps=whole.maps, stream="sequence")])


def _placed(d: Drawing, others: Others) -> TensorParallel:
    return TensorParallel(others=others, boundary=d.pick(claim_of(d).boundaries))


def _between(d: Drawing) -> World:
    """Draw what passes between stages, and sometimes that the user declares it; the first case of a corpus does not."""
    world = cut(_placed)(d)
    if world.replicas is not None or Feature.DECLARED_BOUNDARIES not in d.features:
        return world
    return structs.replace(world, declared=d.pick(["", "exact", "examples"]))


def _given(d: Drawing, others: Others) -> TensorParallel:
    """Draw a placement, and targets that are placed alike or, half as often, whole on every rank.

    The first case of a corpus has the first of everything: whole targets beside samples that are cut, if claimed.
    """
    batches = claim_of(d).batches
    whole = [TensorParallel(others=others, batch=held, target="whole") for held in batches if held != "whole"]
    alike = [TensorParallel(others=others, batch=held) for held in batches]
    return d.pick([*whole, *alike, *alike])


def _program(d: Drawing, draft: Draft) -> Draft:
    """Draw two steps, with or without an optimizer step between them; gradients are always cleared."""
    train, zero = draft.train, Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [(train, zero, train)]
    programs += [(train, Optimize(), zero, train)] * 2 if Feature.OPTIMIZER in d.features else []
    return replaced(draft, program=d.pick(programs))


def _tensor(case: Case) -> TensorParallel:
    assert case.world.tensor is not None
    return case.world.tensor


TENSOR = Subject(
    focus=Focus.TENSOR,
    squares=True,
    form="tensor parallel",
    claimed=lambda claim, own: own.tensor_parallel is not None and bool(own.tensor_parallel.maps),
    found=lambda case: bool(_tensor(case).maps),
    world=cut(_cut),
    program=_program,
    without=with_whole_stages,
    control="with every stage on one rank",
)
PLACED = Subject(
    focus=Focus.PLACED,
    form="tensor parallel",
    claimed=lambda claim, own: own.tensor_parallel is not None and bool(own.tensor_parallel.boundaries),
    found=lambda case: bool(_tensor(case).boundary),
    least_stages=2,
    most_replicas=1,
    world=_between,
    without=with_whole_stages,
    control="with every stage on one rank and ordinary tensors between stages",
)
PLACED_BATCH = Subject(
    focus=Focus.PLACED_BATCH,
    form="tensor parallel",
    trains=True,
    claimed=lambda claim, own: own.tensor_parallel is not None and bool(own.tensor_parallel.batches),
    found=lambda case: bool(_tensor(case).batch),
    most_replicas=1,
    several_microbatches=True,
    batch_size=lambda d, size: size * d.num_tensor_ranks,
    world=cut(_given),
    without=with_whole_stages,
    control="with every stage on one rank and a batch of ordinary tensors",
)
