"""Batches that cannot be split into microbatches of one size."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Eval, Train
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.sizes import shapes, some_m
from pipeconform.case.draw.subject import Size, Subject
from pipeconform.case.focus import Focus


def _several(d: Drawing) -> Size:
    """Draw sizes with at least two microbatches if possible: one alone cannot be uneven."""
    p, v = d.pick(shapes(d.limits, d.claim))
    taken = some_m(d.claim, p, v)
    return p, v, d.pick([m for m in taken if m > 1] or taken)


def _larger(d: Drawing, batch_size: int) -> int:
    m = d.num_microbatches
    return batch_size + d.pick(range(1, m)) if m > 1 else batch_size


def _even(case: Case) -> Case:
    program = (
        structs.replace(step, batch_size=step.batch_size // step.num_microbatches * step.num_microbatches)
        if isinstance(step, Train | Eval)
        else step
        for step in case.program
    )
    return structs.replace(case, program=tuple(program))


UNEVEN = Subject(
    focus=Focus.UNEVEN,
    found=lambda case: any(run.batch_size % run.num_microbatches for run in case.runs),
    size=_several,
    batch_size=_larger,
    without=_even,
    control="with the same number of samples in every microbatch",
    alters="batch sizes",
)
