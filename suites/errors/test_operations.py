"""Operations of a stage that are called out of order."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_requirement("ERR-12")
def test_operations_out_of_order_are_refused(pipeconform_judge: Callable[[], None]) -> None:
    """An operation that is not due is an error that names the microbatch, and changes nothing (ERR-12)."""
    pipeconform_judge()
