"""Tests that share what a fixture of their module makes stay in one worker, which makes it once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

__all__ = ["keep_together"]


def keep_together(items: Iterable[pytest.Item]) -> None:
    """Mark such tests as a group of pytest-xdist, by their module; groups that a test names itself stay as they are."""
    for item in items:
        if not item.get_closest_marker("xdist_group") and _shares(item):
            item.add_marker(pytest.mark.xdist_group(item.path.with_suffix("").as_posix()))


def _shares(item: pytest.Item) -> bool:
    info = getattr(item, "_fixtureinfo", None)  # no public name tells where a test's fixtures are from
    if info is None:
        return False
    module = item.nodeid.partition("::")[0]
    return any(
        one.scope == "module" and one.baseid == module
        for definitions in info.name2fixturedefs.values()
        for one in definitions
    )
