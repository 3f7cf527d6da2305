"""The results that a page is made from, each with its name on the page and links to its violations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeconform.report.causes import Cause
from pipeconform.report.result import Result

__all__ = ["Source", "card_anchor", "named_sources"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One result."""

    result: Result
    path: Path
    label: str
    """A letter for each result of a page, such as ``A``; empty if there is only one."""
    anchors: Mapping[str, str] = field(repr=False)
    """By a violation's id, its fragment on the page."""

    @property
    def name(self) -> str:
        """``A: torch.distributed.pipelining 2.13.0``."""
        implementation = self.result.implementation
        words = f"{implementation.name} {implementation.version}"
        return f"{self.label}: {words}" if self.label else words


def card_anchor(cause: Cause, anchors: Mapping[str, str]) -> str:
    """The fragment of a cause's card; `anchors` maps a violation's id to its own."""
    first = cause.own[0].violation if cause.own else cause.violation
    return f"{anchors[first.id]}-group"


def named_sources(results: Sequence[tuple[Result, Path]]) -> tuple[Source, ...]:
    """Name the results A, B, C, … in the order given; a single one needs no name."""
    taken: Counter[str] = Counter()
    return tuple(
        Source(
            result=result,
            path=path,
            label=label,
            anchors=dict(_anchors(result, label=label, taken=taken)),
        )
        for label, (result, path) in zip(_labels(len(results)), results, strict=True)
    )


def _labels(number: int) -> list[str]:
    if number == 1:
        return [""]
    return [chr(ord("A") + k) if k < 26 else str(k + 1) for k in range(number)]


def _anchors(result: Result, *, label: str, taken: Counter[str]) -> Iterator[tuple[str, str]]:
    """Fragments that are stable between runs, so that links into a page stay valid."""
    for cell in result.cells:
        for violation in cell.violations:
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{label}-{violation.id}" if label else violation.id)
            taken[plain] += 1
            yield violation.id, f"v-{plain}" + (f"-{taken[plain]}" if taken[plain] > 1 else "")
