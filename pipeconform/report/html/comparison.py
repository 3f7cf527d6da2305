"""The cells about which two or more results disagree, the most serious difference first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeconform.report.change import Changes, Key, Kind, aligned
from pipeconform.report.html.source import Source
from pipeconform.report.html.status import NOT_RUN, StatusView, cell_view
from pipeconform.report.result import SEVERITY, Cell
from pipeconform.report.side import differing, side_of
from pipeconform.showing import shown
from pipeconform.spec import Requirement

__all__ = ["Difference", "Side", "changes_since_first", "compared_with_first", "differences", "warnings"]

_GOOD = len(SEVERITY) - 3  # passed, not claimed and skipped come last

_NOT_THE_IMPLEMENTATION = ("standard", "pipeconform", "profile", "selection", "torch", "python", "device")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One result's verdict on a cell."""

    label: str
    status: StatusView
    changes: tuple[Kind, ...]
    """How it changed since the first result, in the words of `pipeconform compare`."""
    signatures: tuple[tuple[str, str], ...]
    """Each violation: its signature, and the link to it."""
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
    """The cells whose verdict changed since the first result; first those that one result meets and another does not.

    Changes are those of `pipeconform compare`, except for changes in the number of cases.
    """
    order = {identifier: at for at, identifier in enumerate(known)}
    compared = compared_with_first(sources)
    found = []
    for key, cells in aligned([source.result for source in sources]).items():
        changes = changes_since_first(cells, compared)
        if any(changes):
            weight = (_weight(cells), order.get(key[0], len(order)), key)
            found.append((weight, _difference(key, sources, cells, changes, known.get(key[0]))))
    return tuple(difference for _, difference in sorted(found, key=lambda pair: pair[0]))


def compared_with_first(sources: Sequence[Source]) -> tuple[Changes, ...]:
    """What compares the cells of each result but the first with those of the first."""
    first, *others = [source.result for source in sources]
    return tuple(Changes(first, other) for other in others)


def changes_since_first(
    cells: Sequence[Cell | None], compared: Sequence[Changes]
) -> tuple[tuple[Kind, ...], ...]:
    """How one cell changed in each result, compared with the first; empty for the first."""
    kinds = (
        [change.kind for change in one.of(cells[0], cell)]
        for cell, one in zip(cells[1:], compared, strict=True)
    )
    return ((), *(tuple(dict.fromkeys(several)) for several in kinds))


def _weight(cells: Sequence[Cell | None]) -> int:
    """The sort key: broken here and met there, then broken in one only, then broken differently, then the rest."""
    broken = [cell is not None and SEVERITY.index(cell.status) < _GOOD for cell in cells]
    if any(broken) and any(cell is not None and cell.status == "passed" for cell in cells):
        return 0
    if any(broken):
        return 2 if all(broken) else 1
    return 3


def _difference(
    key: Key,
    sources: Sequence[Source],
    cells: Sequence[Cell | None],
    changes: Sequence[tuple[Kind, ...]],
    requirement: Requirement | None,
) -> Difference:
    sides = tuple(_side(*one) for one in zip(sources, cells, changes, strict=True))
    title = requirement.title if requirement else ""
    return Difference(
        identifier=key[0],
        title=title,
        level=requirement.level.value if requirement else "",
        schedule=key[1],
        variant=key[2],
        sides=sides,
        letters="".join(sorted({side.status.letter for side in sides})),
        search=" ".join(
            [key[0], title, *(words for side in sides for words, _ in side.signatures)]
            + [kind for side in sides for kind in side.changes]
        ).lower(),
    )


def _side(source: Source, cell: Cell | None, changes: tuple[Kind, ...]) -> Side:
    if cell is None:
        return Side(label=source.label, status=NOT_RUN, changes=changes, signatures=(), reason="")
    return Side(
        label=source.label,
        status=cell_view(cell),
        changes=changes,
        signatures=tuple(
            (shown(violation.signature), f"#{source.anchors[violation.id]}") for violation in cell.violations
        ),
        reason="" if cell.violations else shown(cell.reason),
    )


def warnings(sources: Sequence[Source]) -> tuple[str, ...]:
    """Reasons other than the implementation for which results may differ."""
    apart = differing([side_of(source.result) for source in sources])
    found = [
        f"{name} differs: "
        + "; ".join(f"{source.label} {value}" for source, value in zip(sources, apart[name], strict=True))
        for name in _NOT_THE_IMPLEMENTATION
        if name in apart
    ]
    found += [
        f"{source.label} was stopped early: cells are missing"
        for source in sources
        if not source.result.run.complete
    ]
    return tuple(found)
