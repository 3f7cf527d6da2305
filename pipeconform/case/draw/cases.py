"""Draws one case, from its sizes to its seed.

The order of the choices decides what a seed gives: a choice added in the middle changes every corpus.
"""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Eval, FloatType, LossSpec, Model, Optimize, Sgd, Stage, Train
from pipeconform.case.draw.changes import replaced, two_runs, with_classes
from pipeconform.case.draw.claimed import members_within
from pipeconform.case.draw.drawing import Drawing, usual_dtypes
from pipeconform.case.draw.sizes import draw_size
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.tensor_parallel import cut_blocks, cut_sequences, cut_widths
from pipeconform.case.draw.worlds import alone, bystanding

__all__ = ["draw_case"]

_SEEDS = tuple(range(64))


def draw_case(d: Drawing, subject: Subject) -> Case:
    """Draw one case of the subject."""
    if subject.members:
        members = members_within(d.limits, d.claim, subject)
        subject = d.pick(members) if d.turn is None else members[d.turn % len(members)]
    p, v, m = subject.size(d) if subject.size is not None else draw_size(d, subject)
    d.num_ranks, d.stages_per_rank, d.num_microbatches = p, v, m
    draft = _plain(d, subject)
    if subject.contents is not None:
        draft = subject.contents(d, draft)
    if draft.loss.kind not in d.capabilities.losses:
        draft = replaced(
            draft,
            model=with_classes(draft.model),
            loss=structs.replace(draft.loss, kind="cross_entropy", fixed=True),
        )
    if not draft.world.is_parallel:
        draft = replaced(draft, world=subject.world(d) if subject.world is not None else bystanding(d))
    if subject.program is not None:
        draft = subject.program(d, draft)
    program = draft.program or two_runs(d, draft)
    optimizer = draft.optimizer
    if optimizer is None and any(isinstance(step, Optimize) for step in program):
        optimizer = Sgd(lr=0.125)
    case = Case(
        model=draft.model,
        schedule=d.claim.name,
        stages_per_rank=v,
        world=draft.world,
        program=program,
        loss=draft.loss,
        optimizer=optimizer,
        seed=d.pick(_SEEDS),
    )
    return case if subject.finish is None else subject.finish(d, case)


def _plain(d: Drawing, subject: Subject) -> Draft:
    """Draw the sizes of tensors, ordinary blocks and one dtype; also the world, if these depend on it."""
    boundary, num_stages, m = d.boundary, d.num_stages, d.num_microbatches
    sequence = d.pick([0, 2, 3]) if boundary.min_ndim <= 2 else d.pick([2, 3])
    if boundary.max_ndim < 3:
        sequence = 0
    if subject.sequence is not None:
        sequence = subject.sequence(d, sequence)
    width = d.pick(subject.widths)
    world = alone(d)
    if subject.form == "tensor parallel" and subject.world is not None:
        world = subject.world(d)
    tensor = world.tensor
    if tensor is not None:
        sequence, width = d.pick(cut_sequences(d, tensor)), d.pick(cut_widths(d, tensor))
    stages = [
        d.blocks(sequence, width) if tensor is None or not tensor.maps else cut_blocks(d, tensor, width)
        for _ in range(num_stages)
    ]
    batch_size = m * d.pick(subject.rows)
    if subject.batch_size is not None:
        batch_size = subject.batch_size(d, batch_size)
    model = Model(
        width=width,
        sequence=sequence,
        dtype=_dtype(d, subject),
        stages=tuple(Stage(blocks=chosen) for chosen in stages),
    )
    return Draft(
        model=model,
        world=world,
        train=Train(batch_size=batch_size, num_microbatches=m),
        evaluate=Eval(batch_size=batch_size, num_microbatches=m),
        loss=LossSpec(reduction="mean" if "mean" in d.capabilities.reductions else "sum"),
    )


def _dtype(d: Drawing, subject: Subject) -> FloatType:
    if subject.dtype is not None:
        return subject.dtype(d)
    return d.one_of(usual_dtypes(d.boundary))
