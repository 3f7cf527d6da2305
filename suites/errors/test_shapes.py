"""Shapes and dtypes that are wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("ERR-1")
def test_wrong_input_shapes(pipeconform_judge: Callable[[], None]) -> None:
    """An input of a wrong shape is the declared error, before anything wrong is sent (ERR-1)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-2")
def test_wrong_input_dtypes(pipeconform_judge: Callable[[], None]) -> None:
    """An input of a wrong dtype is the declared error, before anything wrong is sent (ERR-2)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-3")
def test_outputs_that_change(pipeconform_judge: Callable[[], None]) -> None:
    """A stage's output of another shape or dtype is the declared error, or right; never silently wrong (ERR-3)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-4")
def test_outputs_that_change_once(pipeconform_judge: Callable[[], None]) -> None:
    """The same for any stage but the last, in one microbatch of a later step (ERR-4)."""
    pipeconform_judge()
