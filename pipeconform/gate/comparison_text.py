"""A comparison as plain text, JSON, Markdown, or GitHub's workflow commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from pipeconform.gate.comparison import CauseChange, Change, Comparison, Kind, Side
from pipeconform.report.github import Severity, workflow_command
from pipeconform.report.words import under
from pipeconform.showing import shown_line

__all__ = ["FORMATS", "render_comparison"]

FORMATS = ("text", "json", "markdown", "github")

_TITLES: dict[Kind, str] = {
    "regressed": "regressed",
    "new": "new failures",
    "flaky": "flaky",
    "lost": "lost coverage",
    "sometimes": "flaky, but known",
    "reworded": "reported in other words",
    "elsewhere": "shown by another requirement before",
    "effect": "effects of other violations",
    "fixed": "fixed",
    "added": "judged for the first time, and met",
}
_MOST = 50  # entries of one kind; the rest is counted
_LONGEST_SIGNATURE = 80  # of a cause
_MANY = 4  # schedules of a cause that are counted, not named


@dataclass(frozen=True)
class _Entry:
    """The same change under several schedules, reported once."""

    change: Change
    schedules: tuple[str, ...]


def render_comparison(comparison: Comparison, style: str) -> str:
    """The comparison in one of `FORMATS`."""
    if style == "json":
        full = msgspec.to_builtins(comparison) | {"blocked": comparison.blocked}
        return msgspec.json.format(msgspec.json.encode(full), indent=1).decode()
    lines = {"text": _text, "markdown": _markdown, "github": _github}[style](comparison)
    return "\n".join(map(shown_line, lines))


def _text(comparison: Comparison) -> Iterator[str]:
    yield from _heading(comparison)
    for kind, title in _TITLES.items():
        entries = _entries(comparison.of(kind))
        if entries:
            yield ""
            yield f"{title} ({len(comparison.of(kind))}):"
            for entry in entries[:_MOST]:
                yield f"  {_sentence(entry)}"
                if entry.change.replay:
                    yield f"      {entry.change.replay}"
            if len(entries) > _MOST:
                yield f"  … and {len(entries) - _MOST} more"
    yield from _causes(comparison)
    yield ""
    yield _verdict(comparison)


def _causes(comparison: Comparison) -> Iterator[str]:
    """The causes that are new, gone, or seen in other places; how many are as before."""
    if not comparison.causes:
        return
    as_before = 0
    yield ""
    yield f"causes ({_counted(comparison)}):"
    for cause in comparison.causes:
        if cause.kind == "same" and not (cause.also or cause.no_longer or cause.also_under):
            as_before += 1
        else:
            yield f"  {_cause_sentence(cause)}"
    if as_before:
        yield f"  as before: {as_before}"


def _counted(comparison: Comparison) -> str:
    kinds = [cause.kind for cause in comparison.causes]
    words = {"new": "new", "fixed": "fixed", "lost": "no longer judged", "same": "in both"}
    return ", ".join(f"{kinds.count(kind)} {word}" for kind, word in words.items() if kind in kinds)


def _cause_sentence(cause: CauseChange) -> str:
    word = {"lost": "no longer judged"}.get(cause.kind, cause.kind)
    signature = textwrap.shorten(cause.signature, _LONGEST_SIGNATURE, placeholder=" …")
    where = (
        under(*cause.schedules)
        if len(cause.schedules) < _MANY
        else f" under {len(cause.schedules)} schedules"
    )
    text = f"{word}: {cause.requirement} {cause.title}: {signature}{where} ({cause.harm})"
    text += f", known as {cause.known[0]}" if cause.known else ""
    text += f"; now also in {', '.join(cause.also)}" if cause.also else ""
    text += f"; no longer in {', '.join(cause.no_longer)}" if cause.no_longer else ""
    return text + (f"; now also{under(*cause.also_under)}" if cause.also_under else "")


def _markdown(comparison: Comparison) -> Iterator[str]:
    yield f"### pipeconform: {_verdict(comparison)}"
    yield ""
    for line in _heading(comparison):
        yield f"{_escaped(line)}  "
    for kind, title in _TITLES.items():
        entries = _entries(comparison.of(kind))
        if not entries:
            continue
        yield ""
        yield f"**{title}** ({len(comparison.of(kind))})"
        yield ""
        yield "| requirement | schedules | was → is | what | cause |"
        yield "|---|---|---|---|---|"
        for entry in entries[:_MOST]:
            change = entry.change
            what = ": ".join(filter(None, (change.signature, change.detail)))
            was = f"{_word(change.before)} → {_word(change.after)}"
            cells = (change.requirement, ", ".join(entry.schedules), was, what, change.cause)
            yield "| " + " | ".join(_escaped(cell) for cell in cells) + " |"
        if len(entries) > _MOST:
            yield f"| … | {len(entries) - _MOST} more | | | |"
    changed = [one for one in comparison.causes if one.kind != "same" or one.also or one.no_longer]
    if changed:
        yield ""
        yield f"**causes** ({_counted(comparison)})"
        yield ""
        for cause in changed:
            yield f"- {_escaped(_cause_sentence(cause))}"


def _github(comparison: Comparison) -> Iterator[str]:
    for kind, title in _TITLES.items():
        level: Severity = (
            "error" if kind in ("regressed", "new", "lost") else "warning" if kind == "flaky" else "notice"
        )
        for entry in _entries(comparison.of(kind))[:_MOST]:
            yield workflow_command(level, _sentence(entry), title=f"pipeconform: {title}")
    yield workflow_command(
        "error" if comparison.blocked else "notice", _verdict(comparison), title="pipeconform"
    )


def _heading(comparison: Comparison) -> Iterator[str]:
    old, new = comparison.old, comparison.new
    yield f"old: {_side(old)}"
    yield f"new: {_side(new)}"
    if old.standard != new.standard:
        yield (
            f"the rules changed: standard {old.standard} → {new.standard}; "
            f"judge the old implementation by the new standard to see which changes are its own"
        )
    if old.implementation != new.implementation:
        yield "the results are of different implementations"
    elif (old.version, old.source_digest) == (new.version, new.source_digest) and new.source_digest:
        yield "implementation: the same version, and the same adapter source"
    if (old.torch, old.device) != (new.torch, new.device):
        yield f"the environment changed: torch {old.torch} on {old.device} → torch {new.torch} on {new.device}"
    for name, side in (("old", old), ("new", new)):
        if not side.complete:
            yield f"the {name} run was cut short: cells that it did not reach are missing"


def _side(side: Side) -> str:
    return (
        f"{side.implementation} {side.version}, standard {side.standard}, pipeconform {side.product}, "
        f"torch {side.torch}, {side.device}, profile {side.profile}, seed {side.seed}"
    )


def _entries(changes: Sequence[Change]) -> list[_Entry]:
    found: dict[tuple[str, ...], list[Change]] = {}
    for change in changes:
        alike = (change.requirement, change.variant, change.signature, change.cause, change.before, change.after)
        detail = "" if change.signature and change.kind not in ("flaky", "sometimes") else change.detail
        found.setdefault((*alike, detail), []).append(change)
    return [
        _Entry(several[0], tuple(dict.fromkeys(change.schedule for change in several)))
        for several in found.values()
    ]


def _sentence(entry: _Entry) -> str:
    change = entry.change
    variant = "" if change.variant == "default" else f" (variant {change.variant})"
    text = f"{change.requirement}{under(*entry.schedules)}{variant}"
    text += f": {_word(change.before)} → {_word(change.after)}"
    what = "; ".join(filter(None, (change.signature, change.detail)))
    text += f", {what}" if what else ""
    return text + (" [the rule changed]" if change.cause == "rules" else "")


def _word(status: str) -> str:
    return status.replace("_", " ")


def _verdict(comparison: Comparison) -> str:
    counts = [f"{len(comparison.of(kind))} {title}" for kind, title in _TITLES.items() if comparison.of(kind)]
    rest = f"{comparison.unchanged} cells unchanged, {comparison.still_violated} violations in both"
    if not comparison.blocked:
        return f"nothing got worse: {', '.join([*counts, rest])}"
    blocking = [change for change in comparison.changes if change.blocks]
    by_rules = sum(change.cause == "rules" for change in blocking)
    why = f"; {by_rules} of {len(blocking)} because the rules changed" if by_rules else ""
    return f"blocked: {', '.join([*counts, rest])}{why}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
