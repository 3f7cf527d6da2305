"""Subjects, collected from the files of their package."""

import dataclasses

import pytest

from pipeconform.case.draw.registry import SUBJECTS, by_focus
from pipeconform.case.focus import Focus


def test_every_focus_has_its_subject():
    assert {focus: one.focus for focus, one in SUBJECTS.items()} == {focus: focus for focus in Focus}


def test_a_module_may_import_another_one_s_subject():
    load = SUBJECTS[Focus.LOAD]

    assert by_focus([load, load]) == {Focus.LOAD: load}


def test_two_subjects_of_one_focus_are_refused():
    """The second would take the first one's place, unnoticed."""
    load = SUBJECTS[Focus.LOAD]

    with pytest.raises(ValueError, match=r"two subjects .* are about LOAD"):
        by_focus([load, dataclasses.replace(load, members=())])
