"""Wrappers: training."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-27")
def test_one_infinite_gradient(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """A step with an infinite gradient on one rank is skipped on all (DPW-27)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-28")
def test_mixed_precision(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Forwards and reductions are in the dtypes asked for (DPW-28)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-29")
def test_delayed_reductions(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Delayed reductions are done at the end of backward (DPW-29)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-30")
def test_steps_inside_backward(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Steps inside backward are taken once, with the mean (DPW-30)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-32")
def test_gradients_of_gradients(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Gradients in the loss change nothing (DPW-32)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-33")
def test_outputs_modified_in_place(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Outputs may be modified in place (DPW-33)."""
    pipeconform_judge_wrapper()
