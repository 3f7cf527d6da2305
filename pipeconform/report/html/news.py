"""What a comparison begins with: which causes are fixed, worse or new, and what tells the results apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipeconform.report.cause_change import MatchedCause, matched_causes
from pipeconform.report.cause_text import shown_as
from pipeconform.report.causes import Known
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.change_words import CauseWord, as_before, cause_headline
from pipeconform.report.html.source import Source, card_anchor
from pipeconform.report.side import differing, facts, side_of
from pipeconform.showing import shown

__all__ = ["Identity", "News", "NewsGroup", "NewsItem", "identities", "news"]

_HEADINGS: dict[CauseWord, str] = {
    "new": "New",
    "worse": "Worse: the same cause, with more violations",
    "fixed": "Fixed",
    "lost": "No longer judged",
    "same": "As before",
}
_ALWAYS = ("release", "run of")
_MOST = 3  # requirements that a worse cause names


@dataclass(frozen=True, kw_only=True)
class NewsItem:
    """One cause that came, went or stayed."""

    heading: str
    href: str
    words: str
    """How it shows."""
    harm: str
    note: str
    """What it violates now and did not before."""


@dataclass(frozen=True, kw_only=True)
class NewsGroup:
    """The causes of one kind."""

    kind: CauseWord
    heading: str
    items: tuple[NewsItem, ...]


@dataclass(frozen=True, kw_only=True)
class News:
    """What changed from the first result to one of the others."""

    old: str
    new: str
    headline: str
    """``3 fixed, 0 worse, 1 new``."""
    rest: str
    """``12 as before, 1 no longer judged``; empty if there is none."""
    tone: Literal["good", "open", "bad"]
    groups: tuple[NewsGroup, ...]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What tells one result from the others: names and values, the version and the time always among them."""

    label: str
    facts: tuple[tuple[str, str], ...]


def news(sources: Sequence[Source], *, known_causes: Sequence[Known] | None = None) -> tuple[News, ...]:
    """What changed from the first result to each of the others."""
    first, *others = sources
    return tuple(_news(first, other, known_causes) for other in others)


def _news(old: Source, new: Source, known: Sequence[Known] | None) -> News:
    found: dict[CauseWord, list[NewsItem]] = {kind: [] for kind in _HEADINGS}
    for one in matched_causes(old.result, new.result, known=known):
        kind: CauseWord = "worse" if one.is_worse else one.kind
        found[kind].append(_item(one, old if kind in ("fixed", "lost") else new))
    kinds = [kind for kind, several in found.items() for _ in several]
    is_bad = bool(found["new"] or found["worse"])
    return News(
        old=old.label,
        new=new.label,
        headline=cause_headline(kinds),
        rest=as_before(kinds),
        tone="bad" if is_bad else "open" if found["lost"] or not new.result.run.complete else "good",
        groups=tuple(
            NewsGroup(kind=kind, heading=heading, items=tuple(found[kind]))
            for kind, heading in _HEADINGS.items()
            if found[kind]
        ),
    )


def _item(found: MatchedCause, source: Source) -> NewsItem:
    cause = found.cause
    names = list(dict.fromkeys(name for name, _ in found.spread))
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    schedules = list(dict.fromkeys(name for _, name in found.spread))
    return NewsItem(
        heading=f"{cause.requirement} {cause.title}".rstrip(),
        href=f"#{card_anchor(cause, source.anchors)}",
        words=shown(cause.known[0].title if cause.known else shown_as(cause))
        + (f" ·{under}" if (under := cause.under()) else ""),
        harm=HARM[cause.harm],
        note=f"now also {', '.join(names[:_MOST])}{more} under {', '.join(schedules)}" if names else "",
    )


def identities(sources: Sequence[Source]) -> tuple[Identity, ...]:
    """What tells the results apart: the facts in which they differ, after the version and the time of the run."""
    sides = [side_of(source.result, file=source.path) for source in sources]
    names = dict.fromkeys((*_ALWAYS, *differing(sides)))
    return tuple(
        Identity(label=source.label, facts=tuple((name, facts(side)[name]) for name in names))
        for source, side in zip(sources, sides, strict=True)
    )
