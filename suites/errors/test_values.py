"""Values, gradients and batches that are wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("ERR-5")
def test_missing_surplus_and_foreign_values(pipeconform_judge: Callable[[], None]) -> None:
    """A tensor too many or too few, or no tensor, is the declared error where it is (ERR-5)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-6")
def test_gradients_that_a_hook_changes(pipeconform_judge: Callable[[], None]) -> None:
    """A gradient that a hook gave another shape or dtype is the declared error (ERR-6)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-7")
def test_batches_that_cannot_be_split(pipeconform_judge: Callable[[], None]) -> None:
    """A batch that cannot be split as asked is the declared error (ERR-7)."""
    pipeconform_judge()
