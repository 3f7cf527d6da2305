"""The levels of one result: what stands in the way of each, and which violations decide about none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeconform.report.causes import Cause
from pipeconform.report.html.opening import LevelView
from pipeconform.report.html.source import Source, card_anchor
from pipeconform.spec import Level, Requirement

__all__ = ["LevelEntry", "LevelsView", "Named", "levels_view"]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A requirement with its title, and a link to what the page says about it."""

    identifier: str
    title: str
    href: str
    """Empty if the page says nothing about it."""


@dataclass(frozen=True, kw_only=True)
class LevelEntry:
    """One level, and the requirements in its way."""

    view: LevelView
    anchor: str
    in_the_way: tuple[Named, ...]


@dataclass(frozen=True, kw_only=True)
class LevelsView:
    """All levels of one result."""

    entries: tuple[LevelEntry, ...]
    undecided: tuple[Named, ...]
    """The requirements that are violated and not binding, so that they decide about no level."""


def levels_view(
    views: Sequence[LevelView], *, source: Source, causes: Sequence[Cause], known: Mapping[str, Requirement]
) -> LevelsView:
    """The levels of a result with these causes; `known` has the requirements of the standard."""
    cards = _cards(causes, source.anchors)
    rows = {cell.requirement for cell in source.result.cells}

    def named(names: Iterable[str]) -> tuple[Named, ...]:
        return tuple(
            Named(
                identifier=name,
                title=known[name].title if name in known else "",
                href=cards.get(name) or (f"#r-{name}" if name in rows else ""),
            )
            for name in names
        )

    wrong = {name for cause in causes for name in cause.requirements}
    free = [name for name, row in known.items() if name in wrong and row.level is not Level.MUST]
    prefix = f"level-{source.label}-" if source.label else "level-"
    return LevelsView(
        entries=tuple(
            LevelEntry(view=view, anchor=f"{prefix}{view.name}", in_the_way=named(view.in_the_way))
            for view in views
        ),
        undecided=named(free),
    )


def _cards(causes: Sequence[Cause], anchors: Mapping[str, str]) -> dict[str, str]:
    """By requirement, the link to the first card of a cause that violates it, or else blocks it."""
    found: dict[str, str] = {}
    violated = [(name, cause) for cause in causes for name in cause.requirements]
    blocked = [(name, cause) for cause in causes for name in cause.blocked_requirements]
    for name, cause in (*violated, *blocked):
        found.setdefault(name, f"#{card_anchor(cause, anchors)}")
    return found
