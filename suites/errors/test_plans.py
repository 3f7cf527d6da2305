"""Plans that are wrong, or not the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("ERR-8")
def test_stages_that_disagree(pipeconform_judge: Callable[[], None]) -> None:
    """Adjacent stages that say different things about their boundary are an error at build, naming both (ERR-8)."""
    pipeconform_judge()


@pytest.mark.pipeconform_requirement("ERR-9")
def test_wrong_plans(pipeconform_judge: Callable[[], None]) -> None:
    """A wrong plan, or one that differs between ranks, is an error on all of them; nobody hangs (ERR-9)."""
    pipeconform_judge()
