"""Whole models in which the shapes of a run differ from those of the traced example or of the previous run."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case
from pipeconform.case.draw.changes import changed_model, of_one_size, sizes_of
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.whole import as_whole, split_of
from pipeconform.case.focus import Focus


def _shaped(d: Drawing, case: Case) -> Case:
    """Change the length of sequences, or the size of the last run's batch."""
    whole = as_whole(d, case)
    if whole.model.sequence and d.pick([True, False]):
        shorter = d.pick([True, False])
        return _of_lengths(whole, longer=not shorter, shorter_example=shorter)
    first = whole.runs[0]
    m, size = first.num_microbatches, first.batch_size
    other = structs.replace(first, batch_size=d.pick([size + m, *([size - m] if size > m else [])]))
    return structs.replace(whole, program=(*whole.program[:-1], other))


def _of_lengths(case: Case, *, longer: bool = False, shorter_example: bool = False) -> Case:
    split = structs.replace(split_of(case), longer=longer, shorter_example=shorter_example)
    return changed_model(case, split=split)


def _found(case: Case) -> bool:
    split = split_of(case)
    return split.longer or split.shorter_example or len(sizes_of(case)) > 1


WHOLE_SHAPES = Subject(
    focus=Focus.WHOLE_SHAPES,
    form="whole",
    claimed=lambda claim, own: own.tracing is not None and own.tracing.knows_boundaries,
    found=_found,
    rarity=2,
    finish=_shaped,
    without=lambda case: _of_lengths(of_one_size(case)),
    control="with all runs and the example of the same size",
)
