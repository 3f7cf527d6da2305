"""A comparison as plain text, JSON, Markdown, or GitHub's workflow commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

import msgspec

from pipeconform.gate.comparison import CauseChange, Comparison
from pipeconform.gate.comparison_entries import cells_of, entries_of
from pipeconform.gate.comparison_github import annotated
from pipeconform.gate.comparison_words import verdict
from pipeconform.plural import plural
from pipeconform.report.change_words import CAUSE_WORDS, CHANGE_WORDS, as_before, cause_headline
from pipeconform.report.side import Side, differing, selection_words
from pipeconform.report.words import moment, under
from pipeconform.showing import shown_line

__all__ = ["FORMATS", "render_comparison"]

FORMATS = ("text", "json", "markdown", "github")

_MOST = 50  # entries of one kind; the rest is counted
_LONGEST_SIGNATURE = 80  # of a cause
_MANY = 4  # schedules of a cause that are counted, not named


def render_comparison(comparison: Comparison, style: str) -> str:
    """The comparison in one of `FORMATS`."""
    if style == "json":
        full = msgspec.to_builtins(comparison) | {"blocked": comparison.blocked}
        return msgspec.json.format(msgspec.json.encode(full), indent=1).decode()
    lines = {"text": _text, "markdown": _markdown, "github": annotated}[style](comparison)
    return "\n".join(map(shown_line, lines))


def _text(comparison: Comparison) -> Iterator[str]:
    yield from _heading(comparison)
    for kind, words in CHANGE_WORDS.items():
        entries = entries_of(comparison, kind)
        if entries:
            yield ""
            yield f"{words} ({plural(cells_of(comparison.of(kind)), 'cell')}):"
            for entry in entries[:_MOST]:
                yield f"  {entry.sentence}"
                if entry.change.replay:
                    yield f"      {entry.change.replay}"
            if len(entries) > _MOST:
                yield f"  … and {len(entries) - _MOST} more"
    if comparison.causes:
        yield ""
        yield f"causes ({_counted(comparison)}){':' if _told(comparison) else ''}"
        yield from (f"  {_cause_sentence(cause)}" for cause in _told(comparison))
    yield ""
    yield verdict(comparison)


def _told(comparison: Comparison) -> list[CauseChange]:
    """The causes that are new, gone, or seen in other places."""
    return [
        cause
        for cause in comparison.causes
        if cause.word != "same" or cause.also or cause.no_longer or cause.also_under
    ]


def _counted(comparison: Comparison) -> str:
    words = [cause.word for cause in comparison.causes]
    return "; ".join(filter(None, (cause_headline(words), as_before(words))))


def _cause_sentence(cause: CauseChange) -> str:
    signature = textwrap.shorten(cause.signature, _LONGEST_SIGNATURE, placeholder=" …")
    where = (
        under(*cause.schedules)
        if len(cause.schedules) < _MANY
        else f" under {len(cause.schedules)} schedules"
    )
    text = f"{CAUSE_WORDS[cause.word]}: {cause.requirement} {cause.title}: {signature}{where} ({cause.harm})"
    text += f", known as {cause.known[0]}" if cause.known else ""
    text += f"; now also in {', '.join(cause.also)}" if cause.also else ""
    text += f"; no longer in {', '.join(cause.no_longer)}" if cause.no_longer else ""
    return text + (f"; now also{under(*cause.also_under)}" if cause.also_under else "")


def _markdown(comparison: Comparison) -> Iterator[str]:
    yield f"### pipeconform: {verdict(comparison)}"
    yield ""
    for line in _heading(comparison):
        yield f"{_escaped(line.strip())}  "
    for kind, words in CHANGE_WORDS.items():
        entries = entries_of(comparison, kind)
        if not entries:
            continue
        yield ""
        yield f"**{words}** ({plural(cells_of(comparison.of(kind)), 'cell')})"
        yield ""
        yield "| requirement | schedules | was → is | what | cause |"
        yield "|---|---|---|---|---|"
        for entry in entries[:_MOST]:
            change = entry.change
            cells = (entry.titled, ", ".join(entry.schedules), entry.transition, entry.what, change.cause)
            yield "| " + " | ".join(_escaped(cell) for cell in cells) + " |"
        if len(entries) > _MOST:
            yield f"| … | {len(entries) - _MOST} more | | | |"
    told = _told(comparison)
    if told:
        yield ""
        yield f"**causes** ({_counted(comparison)})"
        yield ""
        for cause in told:
            yield f"- {_escaped(_cause_sentence(cause))}"


def _heading(comparison: Comparison) -> Iterator[str]:
    old, new = comparison.old, comparison.new
    for name, side in (("old", old), ("new", new)):
        yield f"{name}: {_side(side)}"
        yield f"     {_run(side)}"
    apart = differing((old, new))
    if "standard" in apart:
        yield (
            f"the rules changed: standard {_arrow(apart['standard'])}; "
            f"judge the old implementation by the new standard to see which changes are its own"
        )
    yield from _implementations(old, new, apart)
    changed = [f"{name} {_arrow(apart[name])}" for name in ("torch", "python", "device") if name in apart]
    if changed:
        yield f"the environment changed: {', '.join(changed)}"
    for name, side in (("old", old), ("new", new)):
        if not side.complete:
            yield f"the {name} run was cut short: cells that it did not reach are missing"


def _implementations(old: Side, new: Side, apart: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Whether the two results are of the same implementation, as far as they tell."""
    if old.implementation != new.implementation:
        yield "the results are of different implementations"
        return
    changed = [f"{name} {_arrow(apart[name])}" for name in ("release", "adapter") if name in apart]
    changed += ["another adapter source"] if "adapter's digest" in apart else []
    if changed:
        yield f"the implementation changed: {', '.join(changed)}"
    elif new.source_digest:
        yield "implementation: the same version, and the same adapter source"


def _arrow(values: tuple[str, ...]) -> str:
    return " → ".join(values)


def _side(side: Side) -> str:
    """Which result it is, of which implementation."""
    adapter = f" ({side.reference})" if side.reference and side.reference != side.implementation else ""
    file = f"{side.file}: " if side.file else ""
    return f"{file}{side.implementation} {side.version}{adapter}, {moment(side.created)}".rstrip(", ")


def _run(side: Side) -> str:
    """With what it was judged, and what was selected."""
    return (
        f"standard {side.standard}, pipeconform {side.product}, torch {side.torch}, {side.device}, "
        f"profile {side.profile}, seed {side.seed}, {selection_words(side)}"
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
