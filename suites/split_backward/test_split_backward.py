"""Schedules that compute input gradients first and weight gradients later."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("SPL-1")
def test_split_backward_equals_the_full_one(pipeconform_judge: Callable[[], None]) -> None:
    """Input-then-weight gradients equal those of the full backward pass (SPL-1)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SPL-2")
def test_each_weight_part_runs_once(pipeconform_judge: Callable[[], None]) -> None:
    """Each weight part runs once, after its input part, and nothing is left at the end (SPL-2)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SPL-5")
def test_memory_is_released_after_the_weight_part(pipeconform_judge: Callable[[], None]) -> None:
    """Nothing that a forward saved is alive once its weight part has run (SPL-5)."""
    pipeconform_judge()
