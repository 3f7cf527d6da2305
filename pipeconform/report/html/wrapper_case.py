"""A wrapper's case on a page: the most important facts, and its steps with their passes."""

from __future__ import annotations

import re

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.report.html.program import Part, StepView
from pipeconform.report.result import Violation
from pipeconform.report.wrapper_text import step_words, wrapper_rows

__all__ = ["where_of", "wrapper_facts", "wrapper_steps"]


def where_of(violation: Violation) -> tuple[str, ...]:
    """The parts of a place: step and rank, if known."""
    return tuple(part for part in violation.where.split(", ") if part)


def wrapper_facts(case: WrapperCase) -> tuple[tuple[str, str], ...]:
    """Names and values, without the program, which is shown separately."""
    return tuple((name, text) for name, text in wrapper_rows(case) if name != "program")


def wrapper_steps(case: WrapperCase, where: str) -> tuple[StepView, ...]:
    """The steps in order, each with its passes; `where`, such as ``step 1, rank 0``, marks the one at fault."""
    found = re.search(r"\bstep (\d+)", where)
    bad = None if found is None else int(found[1])
    return tuple(
        StepView(
            number=str(index),
            name="step",
            size=step_words(step),
            parts=tuple(Part(number=k, bad=False) for k in range(len(step.passes)))
            if len(step.passes) > 1
            else (),
            bad=index == bad,
        )
        for index, step in enumerate(case.steps)
    )
