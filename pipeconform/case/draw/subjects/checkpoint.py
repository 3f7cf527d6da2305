"""Activation checkpointing, reentrant and not."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Case, Model
from pipeconform.case.draw.changes import appended, changed_blocks, in_some_stage, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _checkpointed(d: Drawing, model: Model) -> Model:
    dropout = Feature.DROPOUT in d.features and d.pick([False, True])
    return appended(model, d.pick(range(len(model.stages))), blocks.Checkpointed(dropout=dropout))


def _has(case: Case, *, reentrant: bool) -> bool:
    return any(isinstance(one, blocks.Checkpointed) and one.reentrant is reentrant for one in case.blocks())


def _without(case: Case) -> Case:
    """The same modules without checkpointing, including any dropout."""
    inner: list[AnyBlock] = [blocks.Mlp()]
    if any(isinstance(one, blocks.Checkpointed) and one.dropout for one in case.blocks()):
        inner.append(blocks.Dropout())
    return changed_blocks(case, {blocks.Checkpointed: inner})


CHECKPOINT = Subject(
    focus=Focus.CHECKPOINT,
    needs=frozenset({Feature.CHECKPOINTING}),
    trains=True,
    found=lambda case: _has(case, reentrant=False),
    contents=on_model(_checkpointed),
    without=_without,
    control="without activation checkpointing",
)
REENTRANT = Subject(
    focus=Focus.REENTRANT,
    needs=frozenset({Feature.CHECKPOINTING}),
    trains=True,
    found=lambda case: _has(case, reentrant=True),
    contents=in_some_stage(blocks.Checkpointed(reentrant=True)),
    without=_without,
    control="without activation checkpointing",
)
