"""Write the table of verdicts on the CPU and on a device, cell by cell, into the page about that device.

    python docs/devices/table.py testdev CPU/result.json DEVICE/result.json

The two results are of one implementation and one selection. Result files are large, so the statuses are kept in the
device's ``verdicts.json``, by implementation; its ``reasons.toml`` is written by hand and has the reason of each
difference. A difference without a reason stays in the table as "not known".
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeconform.report.result import Result, read_result

__all__ = ["BEGIN", "DEVICES", "END", "Device", "Kept", "page_with", "table", "unexplained", "unused"]

HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- verdicts -->", "<!-- end of verdicts -->"

Kept = dict[str, dict[str, list[str]]]
"""By implementation and cell (``TRN-1 GPipe``, with the variant if it is not the default), the statuses on the CPU and
on the device."""


@dataclass(frozen=True)
class Device:
    """Where the verdicts and the reasons of a device are kept, and the page that shows them."""

    name: str
    page: Path

    @property
    def verdicts(self) -> Path:
        """The statuses that are kept."""
        return HERE / self.name / "verdicts.json"

    @property
    def reasons(self) -> Path:
        """Why they differ."""
        return HERE / self.name / "reasons.toml"

    @property
    def kept(self) -> Kept:
        """The statuses by implementation and cell; empty if there are none yet."""
        found: Kept = json.loads(self.verdicts.read_text("utf-8")) if self.verdicts.exists() else {}
        return found

    @property
    def explained(self) -> list[dict[str, str]]:
        """The reasons that are written down."""
        return list(tomllib.loads(self.reasons.read_text("utf-8")).get("reason", ()))


DEVICES = {
    one.name: one
    for one in (
        Device("testdev", HERE.parent / "accelerators.md"),
        Device("cuda", HERE.parent / "clusters.md"),
    )
}

_HARNESS = "the harness failed"
"""How the reason of a cell begins that could not be judged: no verdict."""
_WORDS = {"passed": "met", "failed": "violated", "not_claimed": "not claimed"}


def pairs(cpu: Result, device: Result, *, shared: bool = False) -> dict[str, list[str]]:
    """The two statuses of every cell that both runs have; a cell of one run only is an error, unless `shared` says that
    one of them did not come to its end, and that what both have is wanted.

    Raises:
        SystemExit: the runs are of different implementations or cells.
    """
    if cpu.implementation.name != device.implementation.name:
        sys.exit(f"{cpu.implementation.name} and {device.implementation.name} cannot be compared")
    first, second = _statuses(cpu), _statuses(device)
    alone = sorted(first.keys() ^ second.keys())
    if alone and not shared:
        sys.exit(f"only one run has these cells: {', '.join(alone[:20])}")
    if alone:
        print(f"only one run has {len(alone)} cells, from {alone[0]} to {alone[-1]}")
    return {cell: [first[cell], second[cell]] for cell in first.keys() & second.keys()}


def _statuses(result: Result) -> dict[str, str]:
    return {
        " ".join(
            (one.requirement, one.schedule, *([one.variant] if one.variant != "default" else ()))
        ): one.status
        for one in result.cells
        if one.status != "skipped" and not one.reason.startswith(_HARNESS)
    }


def table(kept: Kept, reasons: Sequence[Mapping[str, str]]) -> str:
    """A row for all equal cells of an implementation with the same status, and one for each difference."""
    lines = ["| implementation | cells | CPU | device | reason |", "|---|---|---|---|---|"]
    for name, cells in sorted(kept.items()):
        equal = Counter(cpu for cpu, device in cells.values() if cpu == device)
        lines += [f"| {name} | {n:,} | {_word(one)} | {_word(one)} | – |" for one, n in sorted(equal.items())]
        for (requirement, cpu, device), schedules in _differences(cells).items():
            reason = _reason(name, requirement, cpu, device, reasons)
            where = ", ".join(schedules)
            lines.append(
                f"| {name} | {requirement}: {where} | {_word(cpu)} | {_word(device)} | {reason or 'not known'} |"
            )
    return "\n".join(lines)


def _differences(cells: Mapping[str, Sequence[str]]) -> dict[tuple[str, str, str], list[str]]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell, (cpu, device) in sorted(cells.items()):
        if cpu != device:
            requirement, _, where = cell.partition(" ")
            found.setdefault((requirement, cpu, device), []).append(where)
    return found


def unexplained(kept: Kept, reasons: Sequence[Mapping[str, str]]) -> list[str]:
    """The differences that have no reason."""
    return [
        f"{name}: {requirement} {cpu} {device}"
        for name, cells in kept.items()
        for requirement, cpu, device in _differences(cells)
        if not _reason(name, requirement, cpu, device, reasons)
    ]


def unused(kept: Kept, reasons: Sequence[Mapping[str, str]]) -> list[str]:
    """The reasons that no difference has."""
    found = {(name, *difference) for name, cells in kept.items() for difference in _differences(cells)}
    return [str(one) for one in reasons if not any(_fits(one, *difference) for difference in found)]


def _reason(name: str, requirement: str, cpu: str, device: str, reasons: Sequence[Mapping[str, str]]) -> str:
    return next((one["why"] for one in reasons if _fits(one, name, requirement, cpu, device)), "")


def _fits(one: Mapping[str, str], name: str, requirement: str, cpu: str, device: str) -> bool:
    return (
        one["implementation"] == name
        and requirement in one["requirements"].split(", ")
        and (one["cpu"], one["device"]) == (cpu, device)
    )


def _word(status: str) -> str:
    return _WORDS.get(status, status)


def page_with(page: str, made: str) -> str:
    """The page with another table.

    Raises:
        ValueError: the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{begin}\n{made}\n{end}{after}"


def _lines(kept: Kept) -> Iterator[str]:
    yield "{"
    for n, (name, cells) in enumerate(sorted(kept.items())):
        rows = [f"  {json.dumps(cell)}: {json.dumps(both)}" for cell, both in sorted(cells.items())]
        yield f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }" + ("," if n + 1 < len(kept) else "")
    yield "}\n"


def main() -> None:
    """Keep two runs' statuses, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("device", choices=DEVICES)
    parser.add_argument("results", type=Path, nargs="*", help="of the CPU, then of the device")
    parser.add_argument("--shared", action="store_true", help="a run was ended early: take what both judged")
    asked = parser.parse_args()
    device = DEVICES[asked.device]
    kept = device.kept
    if asked.results:
        first, second = map(read_result, asked.results)
        # what was kept of cells that these runs did not judge stays
        kept[first.implementation.name] = {
            **kept.get(first.implementation.name, {}),
            **pairs(first, second, shared=asked.shared),
        }
        device.verdicts.write_text("\n".join(_lines(kept)), "utf-8")
    device.page.write_text(page_with(device.page.read_text("utf-8"), table(kept, device.explained)), "utf-8")
    for one in unexplained(kept, device.explained):
        print(f"without a reason: {one}")


if __name__ == "__main__":
    main()
