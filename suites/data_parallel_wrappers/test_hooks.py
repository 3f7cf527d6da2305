"""Wrappers: hooks."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.pipeconform_wrapper_requirement("DPW-16")
def test_built_in_hooks(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """Built-in hooks give the mean, compressed ones within their precision (DPW-16)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-17")
def test_a_user_s_hook(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """A user's hook gets every gradient once, and its result is used (DPW-17)."""
    pipeconform_judge_wrapper()


@pytest.mark.pipeconform_wrapper_requirement("DPW-18")
def test_what_is_no_hook_is_refused(pipeconform_judge_wrapper: Callable[[], None]) -> None:
    """What is no hook is refused (DPW-18)."""
    pipeconform_judge_wrapper()
