"""Tests of findings in words: no view writes a bare id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pipeconform
from pipeconform.report.causes.known import Known
from pipeconform.report.finding_words import finding, known_as, known_at, known_ids

PACKAGE = Path(pipeconform.__file__).parent
ENTRY = Known(
    id="7", title="outputs are lost", link="a.py", requirements=("FWD-1",), signature="output", file="x.toml"
)


@pytest.fixture
def other():
    return Known(id="8", title="t", link="b.py", requirements=("FWD-1",), signature="output", file="x.toml")


def test_a_finding_has_its_word_id_and_title():
    assert finding(ENTRY) == "finding 7: outputs are lost"
    assert known_as(ENTRY) == "known as finding 7: outputs are lost"
    assert known_at(ENTRY) == "known as finding 7: outputs are lost (a.py)"


def test_several_are_counted_in_the_word_and_none_is_no_words(other):
    assert known_ids([ENTRY, ENTRY]) == "known as finding 7"
    assert known_ids([ENTRY, other]) == "known as findings 7, 8"
    assert known_ids([]) == ""


def test_no_other_module_writes_an_id_beside_these_words():
    """All views call this module: the words would differ again as soon as one wrote them itself."""
    written = re.compile(r"known as \{(?!cause\.known\[)|\{(?:entry|one)\.id\}: \{(?:entry|one)\.title\}")
    found = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name != "finding_words.py" and written.search(path.read_text("utf-8"))
    ]

    assert found == []
