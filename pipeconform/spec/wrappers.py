"""The chapter about data-parallel wrappers.

It is a chapter of its own, not one of `chapters()`: those are judged of pipelines under each schedule that is
claimed, this one of module wrappers, which have no schedule.
"""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

import msgspec

from pipeconform.errors import UnknownNameError
from pipeconform.spec.catalogue import Chapter, Requirement

__all__ = ["wrapper_capabilities", "wrapper_chapter", "wrapper_requirement"]


@functools.cache
def _table() -> dict[str, dict[str, str]]:
    text = resources.files("pipeconform.spec").joinpath("data_parallel_wrappers.toml").read_text("utf-8")
    rows: dict[str, dict[str, str]] = {k: v for k, v in tomllib.loads(text).items() if k.startswith("DPW-")}
    return dict(sorted(rows.items(), key=lambda item: int(item[0].partition("-")[2])))


@functools.cache
def wrapper_chapter() -> Chapter:
    """Chapter DPW."""
    rows = [
        msgspec.convert({"id": key, **{k: v for k, v in row.items() if k != "capability"}}, Requirement)
        for key, row in _table().items()
    ]
    return Chapter(id="DPW", title="Data-parallel wrappers", requirements=tuple(rows))


def wrapper_capabilities() -> dict[str, frozenset[str]]:
    """By requirement what a wrapper must claim for it to be judged; empty for what every wrapper owes."""
    listed = {key: row.get("capability", "") for key, row in _table().items()}
    return {key: frozenset(filter(None, text.replace(",", " ").split())) for key, text in listed.items()}


def wrapper_requirement(identifier: str) -> Requirement:
    """The requirement called `identifier`, such as ``DPW-1``; case does not matter.

    Raises:
        UnknownNameError: there is none; the message lists the nearest.
    """
    known = {row.id: row for row in wrapper_chapter().requirements}
    if identifier.upper() not in known:
        raise UnknownNameError("requirement", identifier, known)
    return known[identifier.upper()]
