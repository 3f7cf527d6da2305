"""What modules do inside a stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("FWD-13")
def test_shared_parameters_in_a_stage(pipeconform_judge: Callable[[], None]) -> None:
    """A submodule called twice gives the reference's outputs and gradients (FWD-13)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-14")
def test_in_place_operations(pipeconform_judge: Callable[[], None]) -> None:
    """In-place operations corrupt no other microbatch (FWD-14)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-17")
def test_the_models_own_hooks_run_once(pipeconform_judge: Callable[[], None]) -> None:
    """The model's hooks run once per microbatch and direction, at every step alike (FWD-17)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-20")
def test_compiled_stages(pipeconform_judge: Callable[[], None]) -> None:
    """Compiled modules give what they give uncompiled, or every rank refuses them in words (FWD-20)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("FWD-18")
def test_autocast(pipeconform_judge: Callable[[], None]) -> None:
    """A step under autocast has the reference's dtypes, values and gradients (FWD-18)."""
    pipeconform_judge()
