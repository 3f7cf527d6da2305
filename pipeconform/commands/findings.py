"""Findings that come with pipeconform in words, for ``show finding 3``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pipeconform.errors import UsageError
from pipeconform.report.causes import Known, shipped
from pipeconform.report.finding_words import finding
from pipeconform.spec.wrappers import any_requirement

__all__ = ["describe_finding", "finding_named"]

_LABEL, _WIDTH = 11, 88  # columns


def finding_named(identifier: str) -> Known:
    """The finding with this id, such as ``3`` or ``E7``; letter case does not count.

    Raises:
        UsageError: causes are not known as this finding.
    """
    found = {one.id.casefold(): one for one in shipped()}
    if identifier.casefold() in found:
        return found[identifier.casefold()]
    said = f"no cause is known as finding {identifier!r}" if identifier else "'finding' needs its number"
    raise UsageError(
        f"{said}, such as 'pipeconform show finding {shipped()[0].id}'; docs/findings/README.md lists all, and a file "
        f"of 'run --known' has its own"
    )


def describe_finding(one: Known) -> str:
    """What is wrong, in what, what shows it, and where it is written up."""
    parts = [finding(one), ""]
    for name, text in _rows(one):
        parts += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"{name:<{_LABEL}}",
            subsequent_indent=" " * _LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    parts += ["", f"'pipeconform show {one.requirements[0]}' prints the requirement that it violates"]
    return "\n".join(parts)


def _rows(one: Known) -> Iterator[tuple[str, str]]:
    shown = [f"{name} {any_requirement(name).title}" for name in one.requirements]
    yield "In", one.implementation or "any implementation"
    yield "Shown by", "; ".join(shown)
    if one.schedules:
        yield "Under", ", ".join(one.schedules)
    yield "Seen as", one.status if isinstance(one.status, str) else ", ".join(one.status)
    if one.chance:
        yield "Chance", "it shows in some executions only, or in different ways"
    if one.same_as:
        yield "Cause", f"the same as that of finding {one.same_as}"
    yield "Written up", one.link
    if one.thread:
        yield "Thread", one.thread
