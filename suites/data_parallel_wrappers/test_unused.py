"""Wrappers: unused."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-9")
def test_unused_parameters_are_found(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Unused parameters are found, in every step and on every rank (DPW-9)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-10")
def test_a_static_graph(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """A static graph's unreached parameters are treated likewise (DPW-10)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-11")
def test_an_unexpected_unused_parameter(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """An unexpected unused parameter is an error that names it, or all is right (DPW-11)."""
    pipeconform_judge_wrapper()
