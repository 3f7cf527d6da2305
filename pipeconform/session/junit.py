"""Adds the causes of a run to the file that pytest's ``--junit-xml`` writes, as properties of its test suite."""

from __future__ import annotations

import pytest
from _pytest.junitxml import xml_key

from pipeconform.report.causes import causes_of
from pipeconform.report.junit import cause_properties
from pipeconform.report.result import Result

__all__ = ["record_causes"]


def record_causes(config: pytest.Config, result: Result) -> None:
    """Add a property for each cause, the most harmful first, if pytest writes such a file."""
    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    for name, value in cause_properties(causes_of(result)):
        xml.add_global_property(name, value)
