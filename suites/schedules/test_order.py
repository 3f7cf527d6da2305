"""Which computations run, in which order, and where."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("SCH-1")
def test_every_computation_runs_once(pipeconform_judge: Callable[[], None]) -> None:
    """Every stage runs every microbatch once forwards and once backwards, in a possible order (SCH-1)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SCH-2")
def test_the_order_is_the_named_schedules(pipeconform_judge: Callable[[], None]) -> None:
    """Every rank computes in the order of the schedule that was named (SCH-2)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SCH-3")
def test_no_rank_holds_more_than_the_bound(pipeconform_judge: Callable[[], None]) -> None:
    """Microbatches in flight never exceed the named schedule's bound (SCH-3)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SCH-7")
def test_stages_run_where_they_are_placed(pipeconform_judge: Callable[[], None]) -> None:
    """Every stage runs on the ranks that own it, and nowhere else (SCH-7)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("SCH-9")
def test_every_schedule_evaluates(pipeconform_judge: Callable[[], None]) -> None:
    """Evaluation runs every forward once, no backward, and gives the right outputs (SCH-9)."""
    pipeconform_judge()
