"""Shapes and dtypes that are wrong."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.aftermath import Aftermath, answers_are_right
from pipeconform.judge.judgement import after_mistakes
from pipeconform.judge.outcome import Outcome
from pipeconform.spec.catalogue import MUST

from ..promises import DECLARED, FULL_MODEL, MISMATCHES


@after_mistakes(
    "ERR-1",
    title="Wrong input shapes",
    level=MUST,
    about=(Focus.WRONG_SHAPE,),
    promise=(
        DECLARED,
        FULL_MODEL,
        *MISMATCHES,
    ),
)
def wrong_input_shapes(aftermath: Aftermath) -> Iterator[Outcome]:
    """A step whose input has another shape than in the steps before (another number of samples than the
    targets, of elements, or of dimensions) raises the declared error where the first stage is, before
    anything wrong is sent; the error names the argument, the expected and the actual shape. Where no error is
    declared, the step gives what the model itself gives, or an error; no rank hangs or dies.

    A batch of another shape that is computed on, or that kills the receiver, costs hours; an error that names
    both shapes costs a minute.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-2",
    title="Wrong input dtypes",
    level=MUST,
    about=(Focus.WRONG_DTYPE,),
    promise=(
        DECLARED,
        FULL_MODEL,
        *MISMATCHES,
    ),
)
def wrong_input_dtypes(aftermath: Aftermath) -> Iterator[Outcome]:
    """A step whose input has another dtype than in the steps before (smaller, larger, integer, complex)
    raises the declared error where the first stage is, before anything wrong is sent; the error names the
    argument and both dtypes. Where no error is declared, the same holds as in ERR-1.

    Bytes of one dtype read as another still look like numbers.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-3",
    title="Outputs that change",
    level=MUST,
    about=(Focus.CHANGED,),
    promise=(DECLARED, FULL_MODEL, *MISMATCHES),
)
def outputs_that_change(aftermath: Aftermath) -> Iterator[Outcome]:
    """A stage whose output has another shape or dtype than in the steps before, whatever changed it (a hook
    registered before the pipeline was built or between steps), raises the declared error on its own rank
    before the output is sent; the error names the stage and what was expected and found. Where no error is
    declared, the result is what the model itself gives, or there is an error; the result is never silently
    wrong, and the receiver never crashes.

    Receivers allocate what was announced at first; what does not fit is cut off, left over, or written past
    the end.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-4",
    title="Outputs that change once",
    level=MUST,
    about=(Focus.CHANGED_ONCE,),
    promise=(DECLARED, FULL_MODEL, *MISMATCHES),
)
def outputs_that_change_once(aftermath: Aftermath) -> Iterator[Outcome]:
    """For every stage but the last, ERR-3 also holds when a single microbatch of a later step changes.

    Checks are made where they are cheap: in the first step, on the first microbatch, at the first stage.
    """
    yield from answers_are_right(aftermath)
