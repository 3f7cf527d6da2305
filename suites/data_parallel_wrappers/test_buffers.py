"""Wrappers: buffers."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-15")
def test_buffers(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Buffers are the first rank's, or each rank's own where that is switched off (DPW-15)."""
    pipeconform_judge_wrapper()
