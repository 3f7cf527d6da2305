"""What an implementation says about its schedule."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("SCH-4")
def test_the_declared_bubble_is_within_the_formula(pipeconform_judge: Callable[[], None]) -> None:
    """The declared table idles no longer than the named schedule's formula allows (SCH-4)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SCH-5")
def test_the_declared_table_cannot_deadlock(pipeconform_judge: Callable[[], None]) -> None:
    """The declared table runs to its end, however sends behave (SCH-5)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SCH-8")
def test_the_declared_table_is_what_runs(pipeconform_judge: Callable[[], None]) -> None:
    """The declared table can be read, and is what a training step executes (SCH-8)."""
    pipeconform_judge()
