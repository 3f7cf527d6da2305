"""Wrappers: join."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-19")
def test_uneven_inputs(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Ranks may have different numbers of batches (DPW-19)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-20")
def test_uneven_inputs_as_an_error(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Uneven inputs are an error on every rank where that is asked for (DPW-20)."""
    pipeconform_judge_wrapper()
