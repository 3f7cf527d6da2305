"""Two claimed things at once."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Optimize
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import requirement
from pipeconform.judge.training import gradients_are_right, losses_are_right, updates_are_right
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
    """Any two claimed things hold in one case: outputs, losses, gradients and updated parameters are the
    reference's, for instance if gradients accumulate over steps of different sizes, or if a state is loaded
    before an optimizer step.

    Each was tried alone, and what prepares the one clears what the other keeps.
    """
    found = list(_everything(evidence))
    first = min((one.step for one in found if one.step is not None), default=None)
    # what is wrong after the first wrong step follows from it: no control would say whose business that is
    yield from (one for one in found if one.step in (None, first))


def _everything(evidence: Evidence) -> Iterator[Finding]:
    if not any(isinstance(step, Optimize) for step in evidence.case.program):
        yield from outputs_are_right(evidence)  # to the bit, which updates within their bounds do not allow
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)
    if Feature.STATE in evidence.capabilities.features:
        yield from updates_are_right(evidence)
