"""Adds the causes of a run's violations to ``junit.xml``, as properties of its test suite."""

from __future__ import annotations

import pytest
from _pytest.junitxml import xml_key

from pipeconform.report.cause_text import blocked_lines, named, shown_as
from pipeconform.report.causes import causes_of
from pipeconform.report.causes.harm import WORDS
from pipeconform.report.result import Result
from pipeconform.showing import shown_line

__all__ = ["record_causes"]


def record_causes(config: pytest.Config, result: Result) -> None:
    """Add a property for each cause, the most harmful first, if pytest writes such a file."""
    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    causes = causes_of(result)
    for cause in causes:
        text = f"{WORDS[cause.harm]}: {named(cause.requirements)}: {shown_as(cause)}{cause.under()}"
        text += "".join(f"; known as {entry.id}: {entry.title}" for entry in cause.known)
        xml.add_global_property("expected cause" if cause.expected else "cause", shown_line(text))
    for line in blocked_lines(causes):
        xml.add_global_property("blocked", shown_line(line.removeprefix("blocked: ")))
