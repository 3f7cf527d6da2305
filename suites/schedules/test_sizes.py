"""Sizes at which schedules go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("SCH-6")
def test_edge_sizes_are_right_or_refused(pipeconform_judge: Callable[[], None]) -> None:
    """M < p, m = 1, p = 1, v > 3 and an m that is not claimed: right, or refused on every rank (SCH-6)."""
    pipeconform_judge()
