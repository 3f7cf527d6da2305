"""Parameters and buffers that are special."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("TRN-5")
def test_frozen_parameters(pipeconform_judge: Callable[[], None]) -> None:
    """Frozen parameters stay without gradient and the others are right (TRN-5)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("TRN-6")
def test_unused_parameters(pipeconform_judge: Callable[[], None]) -> None:
    """Parameters that microbatches do not use end as the reference's do (TRN-6)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("TRN-9")
def test_buffers(pipeconform_judge: Callable[[], None]) -> None:
    """Running statistics are those of the microbatches in turn (TRN-9)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("TRN-10")
def test_dropout(pipeconform_judge: Callable[[], None]) -> None:
    """Gradients are those of the dropout masks that were drawn (TRN-10)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("TRN-14")
def test_optimizer_steps(pipeconform_judge: Callable[[], None]) -> None:
    """Parameters track the reference over optimizer steps, and lr = 0 moves nothing (TRN-14)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("TRN-8")
def test_tied_weights(pipeconform_judge: Callable[[], None]) -> None:
    """Tied weights and biases have the sum of their uses' gradients (TRN-8)."""
    pipeconform_judge()
