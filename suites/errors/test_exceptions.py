"""Exceptions, and what comes after them."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("ERR-10")
def test_exceptions_of_the_model(pipeconform_judge: Callable[[], None]) -> None:
    """An exception in a stage or the loss is told with its place, and every other rank ends (ERR-10)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-11")
def test_after_an_error(pipeconform_judge: Callable[[], None]) -> None:
    """After an error on all ranks a new pipeline in the same processes is right (ERR-11)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-14")
def test_nobody_waits_for_who_failed(pipeconform_judge: Callable[[], None]) -> None:
    """An exception on one rank ends the step on all, though no connection closes (ERR-14)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-13")
def test_nobody_dies(pipeconform_judge: Callable[[], None]) -> None:
    """No process ends from any mistake of this chapter (ERR-13)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-15")
def test_the_same_pipeline_after_an_error(pipeconform_judge: Callable[[], None]) -> None:
    """After a batch that was refused on all ranks the same pipeline is right (ERR-15)."""
    pipeconform_judge()
