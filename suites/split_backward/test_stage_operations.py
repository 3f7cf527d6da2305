"""Stages driven by hand, and functions that a user defers."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("SPL-3")
def test_deferred_weight_functions_run_once(pipeconform_judge: Callable[[], None]) -> None:
    """A deferred-weight function runs once per stage and microbatch, under every schedule (SPL-3)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SPL-4")
def test_weight_parts_that_are_not_due_are_refused(pipeconform_judge: Callable[[], None]) -> None:
    """A weight part too early, twice or of no microbatch raises an error in words (SPL-4)."""
    pipeconform_judge()
