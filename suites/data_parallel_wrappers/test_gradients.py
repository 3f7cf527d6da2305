"""Wrappers: gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-1")
def test_the_mean_gradient(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Gradients are the mean over replicas with different data (DPW-1)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-2")
def test_replicas_begin_equal(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Replicas built with other values begin as the first rank's (DPW-2)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-3")
def test_other_shapes_are_refused(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """A parameter of another shape is an error on every rank that names it (DPW-3)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-4")
def test_several_dtypes(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Parameters of several dtypes get their means (DPW-4)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-5")
def test_shared_and_frozen_parameters(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Shared parameters count once, frozen ones get nothing (DPW-5)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-6")
def test_what_is_ignored_stays_the_user_s(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """What is ignored is neither broadcast nor reduced (DPW-6)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-14")
def test_gradients_cleared_in_any_way(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Gradients are right however they are cleared (DPW-14)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-25")
def test_channels_last(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Channels-last parameters get their means (DPW-25)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-26")
def test_sparse_gradients(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Sparse gradients are averaged (DPW-26)."""
    pipeconform_judge_wrapper()
