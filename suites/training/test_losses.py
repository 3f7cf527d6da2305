"""Losses and loss functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("TRN-2")
def test_losses_are_right_and_in_order(pipeconform_judge: Callable[[], None]) -> None:
    """One loss per microbatch, right, in order, on the declared rank (TRN-2)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("TRN-12")
def test_loss_functions_and_targets(pipeconform_judge: Callable[[], None]) -> None:
    """Losses with arguments, classes and ignored targets are right (TRN-12)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("TRN-13")
def test_auxiliary_losses(pipeconform_judge: Callable[[], None]) -> None:
    """An auxiliary loss in a middle stage contributes once, with its own scale (TRN-13)."""
    pipeconform_judge()
