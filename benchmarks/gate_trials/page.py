"""docs/gate-trials.md: what a gate said of unchanged torch, and of torch with planted mistakes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.gate_trials.planted import PLANTED
from benchmarks.gate_trials.running import Trial
from pipeconform.plural import plural

__all__ = ["page"]

_MOST = 3  # lines shown of what a gate says
_LOADED = 10.0  # a mean load average that eight busy processes and a run bring about


def page(trials: Sequence[Trial]) -> str:
    """The page, from what was run."""
    return "\n".join([*_head(trials), *_unchanged(trials), *_planted(trials), ""])


def _head(trials: Sequence[Trial]) -> Iterator[str]:
    bases = [one for one in trials if one.kind == "base"]
    days = sorted({one.began[:10] for one in trials})
    yield "# Whether the gate holds"
    yield ""
    yield (
        f"Written by `python -m benchmarks.gate_trials` ({' to '.join(dict.fromkeys((days[0], days[-1])))}). "
        f"For each series, three smoke runs of torch's own pipelining made [expectations](gating.md#expected-failures) "
        f"(`expect update` with their results; {plural(len(bases), 'run')} in all). Then the same torch ran again and "
        "again with these expectations, one or two such runs at a time on two cores, alone or beside other work: a "
        "gate must let it pass each time. And it ran with one mistake planted at a time: the gate must fail each time."
        if days
        else "Nothing has run yet."
    )
    yield ""


def _unchanged(trials: Sequence[Trial]) -> Iterator[str]:
    runs = [one for one in trials if one.kind == "unchanged"]
    if not runs:
        return
    yield "## Unchanged torch"
    yield ""
    yield "| beside it | runs | false alarms | seconds, median and most |"
    yield "|---|---|---|---|"
    for beside in sorted({_beside(one) for one in runs}):
        these = [one for one in runs if _beside(one) == beside]
        seconds = [one.seconds for one in these]
        alarms = sum(one.code != 0 for one in these)
        yield (
            f"| {_beside_words(these)} | {len(these)} | {alarms} | "
            f"{statistics.median(seconds):.0f} and {max(seconds):.0f} |"
        )
    yield ""
    for one in runs:
        if one.code:
            yield f"- {one.name}: exit code {one.code}; {_said(one)}"
    yield ""


def _beside(one: Trial) -> tuple[int, bool]:
    """The busy processes started for it, and whether the machine was as loaded as by eight of them all the same."""
    return one.busy, not one.busy and one.load is not None and one.load >= _LOADED


def _beside_words(these: Sequence[Trial]) -> str:
    busy, loaded = _beside(these[0])
    if not loaded:
        return f"busy processes: {busy}" if busy else "nothing, or one other such run"
    loads = [one.load for one in these if one.load is not None]
    return f"other work: a mean load of {min(loads):.0f} to {max(loads):.0f}, its own included"


def _planted(trials: Sequence[Trial]) -> Iterator[str]:
    runs = {one.name: one for one in trials if one.kind == "planted"}
    if not runs:
        return
    yield "## Planted mistakes"
    yield ""
    yield "| mistake | under | exit code | what the gate says first |"
    yield "|---|---|---|---|"
    for planted in PLANTED:
        if (one := runs.get(planted.__name__)) is not None:
            what = (planted.__doc__ or "").splitlines()[0]
            yield f"| {what} | {planted.schedule} | {one.code} | {_said(one) if one.code else '**nothing**'} |"


def _said(one: Trial) -> str:
    lines = [line.replace("|", "\\|").replace("<", "&lt;") for line in one.said[:_MOST]]
    more = len(one.said) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "")
