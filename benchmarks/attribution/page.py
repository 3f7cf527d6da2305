"""docs/attribution.md: for every fault of the reference, whom the suite accuses."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from benchmarks.attribution.verdicts import Verdict
from pipeconform.campaign.trial import Fault

__all__ = ["page"]


def page(labels: Mapping[str, Fault], verdicts: Mapping[str, Verdict]) -> str:
    """The page, from the verdicts on the faults that were judged."""
    judged = [(fault, verdicts[name]) for name, fault in labels.items() if name in verdicts]
    return "\n".join([*_head(len(labels), judged), *_rows(judged), ""])


def _head(known: int, judged: list[tuple[Fault, Verdict]]) -> Iterator[str]:
    seen = [(fault, one) for fault, one in judged if one.causes]
    days = sorted(one.judged[:10] for _, one in judged)
    yield "# Whom the suite accuses"
    yield ""
    yield (
        f"Written by `python -m benchmarks.attribution`. {len(judged)} of the {known} faults of the reference, in an "
        "order drawn by a hash, were judged by all requirements at profile smoke, under the schedule with which they "
        "show. Smoke draws few cases, so some faults are not seen: each is detected by its own requirement in the "
        "[kill matrix](kill-matrix.md). Requirements about errors (ERR) are asked of faults labelled with one. A label "
        "may also name a requirement that the fault breaks as plainly; most of these were added after looking at "
        "verdicts like the ones below, so the row about the requirement that a fault was written for owes them nothing."
    )
    yield ""
    if not seen:
        return
    right = sum(one.of(fault) == "right" for fault, one in seen)
    share = f"{right} of {len(seen)} ({right / len(seen):.1%})"
    own = sum(fault.requirement in one.causes[0].requirements for fault, one in seen)
    counts = [len(one.causes) for _, one in seen]
    accused = [len({name for cause in one.causes for name in cause.requirements}) for _, one in seen]
    blocked = [len({name for cause in one.causes for name in cause.blocked}) for _, one in seen]
    yield "| | |"
    yield "|---|---|"
    yield f"| judged | from {days[0]} to {days[-1]} |"
    yield f"| faults judged | {len(judged)} |"
    yield f"| seen at smoke | {len(seen)} |"
    yield f"| first cause accuses a requirement of the fault's label | {share} |"
    yield f"| of these, the requirement that it was written for, not one that it breaks as plainly | {own} |"
    yield f"| causes per fault, median and most | {statistics.median(counts):g} and {max(counts)} |"
    yield f"| requirements accused per fault, median and most | {statistics.median(accused):g} and {max(accused)} |"
    yield f"| requirements blocked per fault, median and most | {statistics.median(blocked):g} and {max(blocked)} |"
    yield f"| faults for which a cell could not be judged | {sum(bool(one.failed) for _, one in judged)} |"
    yield ""


def _rows(judged: list[tuple[Fault, Verdict]]) -> Iterator[str]:
    yield "| fault | label | schedule | first cause | causes | accused | blocked |"
    yield "|---|---|---|---|---|---|---|"
    order = {"other": 0, "right": 1, "unseen": 2}

    def place(each: tuple[Fault, Verdict]) -> tuple[int, str, str]:
        fault, one = each
        return order[one.of(fault)], fault.requirement, fault.name

    for fault, one in sorted(judged, key=place):
        accused = dict.fromkeys(name for cause in one.causes for name in cause.requirements)
        blocked = {name for cause in one.causes for name in cause.blocked} - accused.keys()
        top = one.causes[0].requirements[0] if one.causes else ""
        first = {"right": top, "other": f"**{top}**", "unseen": "not seen at smoke"}[one.of(fault)]
        label = " or ".join((fault.requirement, *fault.also))
        yield (
            f"| {fault.name} | {label} | {fault.schedule} | {first} | {len(one.causes)} | "
            f"{', '.join(accused)} | {len(blocked)} |"
        )
