"""Two claimed things at once."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Eval, Optimize
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.finding import of_first_wrong_step
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import requirement
from pipeconform.judge.lifecycle import traces_of_evaluation
from pipeconform.judge.training import (
    buffers_are_right,
    gradients_are_right,
    losses_are_right,
    updates_are_right,
)
from pipeconform.spec.catalogue import MUST

from ..promises import FULL_MODEL, contract


@requirement(
    "TRN-22",
    title="Two things at once",
    level=MUST,
    about=(Focus.TOGETHER,),
    trains=True,
    promise=(FULL_MODEL, contract("Capabilities: what is claimed holds together, too")),
)
def two_things_at_once(evidence: Evidence) -> Iterator[Finding]:
    """Any two claimed things hold in one case: outputs, losses, gradients, updated parameters and buffers are
    the reference's, for instance if gradients accumulate over steps of different sizes, if a state is loaded
    before an optimizer step, or if a stage with hooks gets keyword arguments.

    Each was tried alone, and what prepares the one clears what the other keeps.
    """
    yield from of_first_wrong_step(_everything(evidence))


def _everything(evidence: Evidence) -> Iterator[Finding]:
    yield from outputs_are_right(evidence)
    yield from _evaluations_before_updates(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)
    if Feature.STATE in evidence.capabilities.features:
        yield from updates_are_right(evidence)
    yield from buffers_are_right(evidence)


def _evaluations_before_updates(evidence: Evidence) -> Iterator[Finding]:
    """An evaluation right before an optimizer step changes nothing that the step uses.

    A wrong parameter would not say what became of the gradients.
    """
    following = dict(enumerate(evidence.case.program[1:]))
    for expected in evidence.runs(Eval):
        if isinstance(following.get(expected.step), Optimize):
            for one in evidence.members:
                yield from traces_of_evaluation(evidence, one, expected.step)
