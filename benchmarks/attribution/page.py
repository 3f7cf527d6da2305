"""docs/attribution.md: for every fault of the reference, whom the suite accuses."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeconform.campaign.trial import Fault
from pipeconform.report.causes import Cause, causes_of
from pipeconform.report.result import Result

__all__ = ["Verdict", "page", "verdict_of"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a result says about a fault."""

    fault: Fault
    causes: tuple[Cause, ...]
    failed: tuple[str, ...]
    """Requirements whose cells the harness could not judge."""

    @property
    def top(self) -> str:
        """The requirement of the first cause; empty if nothing was found."""
        return self.causes[0].requirement if self.causes else ""

    @property
    def verdict(self) -> str:
        """``right``: the first cause accuses the labelled requirement; ``other``: another one; ``unseen``: no cause."""
        if not self.causes:
            return "unseen"
        return "right" if self.fault.requirement in self.causes[0].requirements else "other"


def verdict_of(fault: Fault, result: Result) -> Verdict:
    """What a result says about a fault, without findings about other implementations."""
    failed = [cell.requirement for cell in result.cells if cell.status == "error" and not cell.violations]
    return Verdict(fault=fault, causes=causes_of(result, known=()), failed=tuple(failed))


def page(labels: Mapping[str, Fault], results: Mapping[str, Result]) -> str:
    """The page, from the results of the faults that were judged."""
    verdicts = [verdict_of(labels[name], result) for name, result in results.items()]
    return "\n".join([*_head(len(labels), verdicts), *_rows(verdicts), ""])


def _head(known: int, verdicts: list[Verdict]) -> Iterator[str]:
    seen = [one for one in verdicts if one.causes]
    right = sum(one.verdict == "right" for one in seen)
    counts = [len(one.causes) for one in seen]
    yield "# Whom the suite accuses"
    yield ""
    yield (
        f"Written by `python -m benchmarks.attribution`. {len(verdicts)} of the {known} faults of the reference, in an "
        "order drawn by a hash, were judged by all requirements at profile smoke, under the schedule with which they "
        "show. Smoke draws few cases, so some faults are not seen: each is detected by its own requirement in the "
        "[kill matrix](kill-matrix.md). Requirements about errors (ERR) are asked of faults labelled with one."
    )
    yield ""
    if not seen:
        return
    yield "| | |"
    yield "|---|---|"
    yield f"| faults judged | {len(verdicts)} |"
    yield f"| seen at smoke | {len(seen)} |"
    yield f"| first cause accuses the labelled requirement | {right} of {len(seen)} ({right / len(seen):.0%}) |"
    yield f"| causes per fault, median and most | {statistics.median(counts):g} and {max(counts)} |"
    accused = [len({name for cause in one.causes for name in cause.requirements}) for one in seen]
    blocked = [len({name for cause in one.causes for name in cause.blocked_requirements}) for one in seen]
    yield f"| requirements accused per fault, median and most | {statistics.median(accused):g} and {max(accused)} |"
    yield f"| requirements blocked per fault, median and most | {statistics.median(blocked):g} and {max(blocked)} |"
    broken = sum(bool(one.failed) for one in verdicts)
    yield f"| faults for which a cell could not be judged | {broken} |"
    yield ""


def _rows(verdicts: list[Verdict]) -> Iterator[str]:
    yield "| fault | label | schedule | first cause | causes | accused | blocked |"
    yield "|---|---|---|---|---|---|---|"
    order = {"other": 0, "right": 1, "unseen": 2}
    for one in sorted(
        verdicts, key=lambda each: (order[each.verdict], each.fault.requirement, each.fault.name)
    ):
        accused = dict.fromkeys(name for cause in one.causes for name in cause.requirements)
        blocked = {name for cause in one.causes for name in cause.blocked_requirements} - accused.keys()
        top = {"right": one.top, "other": f"**{one.top}**", "unseen": "not seen at smoke"}[one.verdict]
        yield (
            f"| {one.fault.name} | {one.fault.requirement} | {one.fault.schedule} | {top} | {len(one.causes)} | "
            f"{', '.join(accused)} | {len(blocked)} |"
        )
