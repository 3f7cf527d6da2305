"""Where two results or more say something else about the same cell, the heaviest difference first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeconform.report.html.message import visible
from pipeconform.report.html.source import Source
from pipeconform.report.html.status import NOT_RUN, StatusView, cell_view
from pipeconform.report.result import SEVERITY, Cell
from pipeconform.spec import Requirement

__all__ = ["Difference", "Side", "differences", "warnings"]

_GOOD = len(SEVERITY) - 3  # passed, not claimed and skipped come last


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one result says."""

    label: str
    status: StatusView
    signatures: tuple[tuple[str, str], ...]
    """Each distinct violation: its signature and where it is told."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One cell about which the results disagree."""

    identifier: str
    title: str
    level: str
    schedule: str
    variant: str
    sides: tuple[Side, ...]
    letters: str
    search: str


def differences(sources: Sequence[Source], *, known: dict[str, Requirement]) -> tuple[Difference, ...]:
    """The cells with other statuses or other violations, those that are met somewhere and broken elsewhere first."""
    keyed = [
        {(cell.requirement, cell.schedule, cell.variant): cell for cell in source.result.cells}
        for source in sources
    ]
    order = {identifier: at for at, identifier in enumerate(known)}
    found = []
    for key in dict.fromkeys(key for one in keyed for key in one):
        cells = [one.get(key) for one in keyed]
        if len({_said(cell) for cell in cells}) > 1:
            weight = (_weight(cells), order.get(key[0], len(order)), key)
            found.append((weight, _difference(key, sources, cells, known.get(key[0]))))
    return tuple(difference for _, difference in sorted(found, key=lambda pair: pair[0]))


def _said(cell: Cell | None) -> tuple[str, frozenset[str]]:
    if cell is None:
        return ("", frozenset())
    return cell_view(cell).key, frozenset(violation.signature for violation in cell.violations)


def _weight(cells: Sequence[Cell | None]) -> int:
    """Broken here and met there, then broken here only, then broken otherwise, then the rest."""
    broken = [cell is not None and SEVERITY.index(cell.status) < _GOOD for cell in cells]
    if any(broken) and any(cell is not None and cell.status == "passed" for cell in cells):
        return 0
    if any(broken):
        return 2 if all(broken) else 1
    return 3


def _difference(
    key: tuple[str, str, str],
    sources: Sequence[Source],
    cells: Sequence[Cell | None],
    requirement: Requirement | None,
) -> Difference:
    sides = tuple(_side(source, cell) for source, cell in zip(sources, cells, strict=True))
    title = requirement.title if requirement else ""
    return Difference(
        identifier=key[0],
        title=title,
        level=requirement.level.value if requirement else "",
        schedule=key[1],
        variant=key[2],
        sides=sides,
        letters="".join(sorted({side.status.letter for side in sides})),
        search=" ".join([key[0], title, *(words for side in sides for words, _ in side.signatures)]).lower(),
    )


def _side(source: Source, cell: Cell | None) -> Side:
    if cell is None:
        return Side(label=source.label, status=NOT_RUN, signatures=(), reason="")
    return Side(
        label=source.label,
        status=cell_view(cell),
        signatures=tuple(
            (visible(violation.signature), f"#{source.anchors[violation.id]}")
            for violation in cell.violations
        ),
        reason="" if cell.violations else visible(cell.reason),
    )


def warnings(sources: Sequence[Source]) -> tuple[str, ...]:
    """Why a difference may come from something else than the implementation."""
    facts = {
        "the standard": [source.result.standard_version for source in sources],
        "the product": [source.result.product_version for source in sources],
        "the profile": [source.result.run.profile for source in sources],
        "the seed": [str(source.result.run.seed) for source in sources],
        "torch": [source.result.environment.torch for source in sources],
        "the device": [source.result.environment.device for source in sources],
    }
    found = [
        f"{what} differs: "
        + ", ".join(f"{s.label} {value}" for s, value in zip(sources, values, strict=True))
        for what, values in facts.items()
        if len(set(values)) > 1
    ]
    found += [
        f"{source.label} was stopped early: cells are missing"
        for source in sources
        if not source.result.run.complete
    ]
    return tuple(found)
