"""Wrappers: accumulation."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-7")
def test_accumulation(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Accumulation gives the gradients of one large batch (DPW-7)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-8")
def test_where_the_forward_ran_decides(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Where the forward ran decides whether a backward synchronises (DPW-8)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-21")
def test_two_forwards_before_one_backward(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Two forwards before one backward give the sum of both (DPW-21)."""
    pipeconform_judge_wrapper()
