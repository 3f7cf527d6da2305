"""Autograd graphs that are hard to split into input and weight parts."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Case, Model, Passage
from pipeconform.case.draw.changes import appended, on_model, without_blocks, without_passages
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

_BLOCKS = (blocks.Pieces, blocks.Common, blocks.Offsets, blocks.Combined, blocks.Joined)


def _hard(d: Drawing, model: Model) -> Model:
    """Add a block whose graph is hard to split, or a boundary tensor that does not depend on the stage's inputs."""
    last = len(model.stages) - 1
    table: list[AnyBlock | None] = [
        blocks.Offsets(),
        blocks.Combined(),
        blocks.Combined(how="rows"),
        blocks.Common(),
        blocks.Pieces(),
        blocks.Pieces(how="split"),
        blocks.Pieces(how="unbind"),
        blocks.Joined(),
    ]
    if last > 1 and d.boundary.max_tensors > 1 and d.boundary.differ and d.containers:
        table += [None, None]
    block = d.pick(table)
    if block is not None:
        return appended(model, d.pick(range(last + 1)), block)
    source = d.pick(range(1, last))
    learned = Passage(kind="learned", source=source, last=source + 1, users=(source + 1,))
    return structs.replace(model, passages=(learned,), container=d.pick(d.containers))


def _has_learned(case: Case) -> bool:
    return any(one.kind == "learned" for one in case.model.passages)


def _without(case: Case) -> Case:
    found = without_blocks(*_BLOCKS, instead=(blocks.Linear(),))(case)
    return without_passages(found) if _has_learned(case) else found


GRAPHS = Subject(
    focus=Focus.GRAPHS,
    trains=True,
    claimed=lambda claim, own: claim.split_backward,
    found=lambda case: case.has(*_BLOCKS) or _has_learned(case),
    contents=on_model(_hard),
    without=_without,
    control="with a linear map instead, whose graph is easy to split",
)
