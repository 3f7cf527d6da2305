"""The table of the ablation, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.ablation.running import HOLDS, Record

__all__ = ["page"]

_MEANING = {
    "detected": "the fault was found all the same",
    "not claimed": "the cell says that the requirement is not claimed; levels that need it are refused",
    "in part": "the cell is ok and names the subject that it was not judged on (`without`)",
    "named": "the cell is ok; a certificate names the claim that was left out, and what is not seen without it",
    "nothing compared": "the cell says that nothing was compared; every level that has the requirement is refused",
    "ok": "**an escape**: the cell says ok",
}


def page(records: Sequence[Record], *, asked: int) -> str:
    """Totals, escapes, and a row for each fault."""
    return "\n".join(_lines(records, asked=asked)) + "\n"


def _lines(records: Sequence[Record], *, asked: int) -> Iterator[str]:
    yield "# Claims left out"
    yield ""
    yield "Every fault of the reference, without every single claim that its requirement's cases depend on, as"
    yield "`python -m benchmarks.ablation` found it. Made by that command; do not edit."
    yield ""
    faults = len({one.fault for one in records})
    yield f"{len(records):,} of {asked:,} pairs of a fault and a claim have run, of {faults} faults."
    yield ""
    counts = Counter(one.outcome for one in records)
    yield "| outcome | pairs | meaning |"
    yield "|---|---|---|"
    for outcome in (*HOLDS, "ok"):
        yield f"| {outcome} | {counts[outcome]:,} | {_MEANING[outcome]} |"
    yield ""
    escapes = [one for one in records if one.outcome == "ok"]
    yield "## Escapes"
    yield ""
    if not escapes:
        yield "None among these."
    else:
        yield "| fault | requirement | without | |"
        yield "|---|---|---|---|"
        for one in sorted(escapes, key=lambda it: (it.requirement, it.fault)):
            yield f"| {one.fault} | {one.requirement} | {one.claim} | {one.detail} |"
    yield ""
    yield "## By fault"
    yield ""
    yield "| fault | requirement | " + " | ".join((*HOLDS, "ok")) + " |"
    yield "|---" * (len(HOLDS) + 3) + "|"
    for name in sorted({one.fault for one in records}):
        own = [one for one in records if one.fault == name]
        cells = [", ".join(it.claim for it in own if it.outcome == outcome) for outcome in (*HOLDS, "ok")]
        yield f"| {name} | {own[0].requirement} | " + " | ".join(cells) + " |"
