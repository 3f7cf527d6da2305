"""Batches that come from an iterator."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Eval
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import requirement
from pipeconform.judge.training import gradients_are_right, losses_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import FULL_MODEL, contract


@requirement(
    "TRN-25",
    title="Batches from a source",
    level=MUST,
    about=(Focus.SOURCES,),
    needs=(Feature.BATCH_SOURCES,),
    any_schedule=True,
    promise=(
        FULL_MODEL,
        contract("Batch.source: a step's microbatches are the next ones of an iterator that all steps share"),
    ),
)
def batches_from_a_source(evidence: Evidence) -> Iterator[Finding]:
    """Where steps take their microbatches from an iterator, each step has exactly the next m of them, in their
    order: none is lost between steps, taken by an evaluation from the data of training, or taken twice, and an
    iterator that ends with the step does not disturb it; the last microbatch may be shorter where that is claimed.

    An engine that fetches ahead loses data at every change between training and evaluation, and inputs and targets
    that come from two iterators drift apart: the loss falls more slowly, and nothing else shows it.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    if Feature.EVAL_LOSSES in evidence.capabilities.features:
        yield from losses_are_right(evidence, of=Eval)
    yield from gradients_are_right(evidence)
