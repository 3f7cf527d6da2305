"""Wrappers: models."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-22")
def test_activation_checkpointing(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Recomputed activations change no gradient (DPW-22)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-23")
def test_reentrant_checkpointing(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Parts with a backward of their own change no gradient (DPW-23)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-24")
def test_structured_outputs(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Structured outputs keep their containers and their gradients (DPW-24)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-44")
def test_outputs_that_are_remote_references(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """A forward may return a remote reference (DPW-44)."""
    pipeconform_judge_wrapper()
