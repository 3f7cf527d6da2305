"""One measurement by itself: prints its table, and keeps it as ``measured.json`` for the page.

python -m benchmarks.gpu.measuring latency --device cuda --ranks 2 --ranks-per-device 2 --out FOLDER
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.gpu import on_ranks
from pipeconform import run_on_ranks
from pipeconform.ranks.flight import SIZE, flights_in

__all__ = ["Measured"]

MEASURED = "measured.json"
_LIMIT = 240.0  # seconds
_HANG_LIMIT = 30.0
_DUMP_AFTER = 3.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A table, and what else is to be read."""

    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    text: str = ""


Call = Callable[..., Sequence[Any]]


def latency(call: Call, folder: Path) -> Measured:
    """The slower rank's median, per size and way."""
    found = call(on_ranks.latency)
    ways = tuple(found[0])
    rows = tuple(
        (_bytes(size), *(f"{max(one[way][size] for one in found):.1f}" for way in ways))
        for size in on_ranks.SIZES
    )
    return Measured(head=("message", *(f"{way}, µs one way" for way in ways)), rows=rows)


def communicators(call: Call, folder: Path) -> Measured:
    """The slowest rank's median, per step of a group's life."""
    found = call(on_ranks.communicators)
    steps = tuple(next(iter(found[0].values())))
    rows = tuple(
        (name, *(f"{max(one[name][step] for one in found):.2f}" for step in steps)) for name in found[0]
    )
    return Measured(head=("ms", *steps), rows=rows)


def memory(call: Call, folder: Path) -> Measured:
    """Every rank's memory, from moment to moment."""
    rows = []
    kinds: tuple[str, ...] = ()
    for rank, found in enumerate(call(on_ranks.memory)):
        for moment, used in found.items():
            kinds = tuple(used)
            values = ("–" if value is None else f"{value:.1f}" for value in used.values())
            rows.append((f"rank {rank}, {moment}", *values))
    return Measured(head=("MiB", *kinds), rows=tuple(rows))


def bits(call: Call, folder: Path) -> Measured:
    """With everything pinned as in a run, and without deterministic algorithms."""
    rows = []
    for words, pinned in (("pinned", True), ("not pinned", False)):
        for dtype, found in call(on_ranks.bits, pinned)[0].items():
            rows.append((dtype, words, *_shares(found)))
    return Measured(
        head=("dtype", "algorithms", "same bits when repeated", "same bits as the CPU's", "values"),
        rows=tuple(rows),
    )


def hang(call: Call, folder: Path) -> Measured:
    """The explanation of a deadlock, and the dumps beside it."""
    vector = call(on_ranks.hang, str(folder), _DUMP_AFTER)
    text = vector.explain()
    (folder / "explanation.txt").write_text(text, encoding="utf-8")
    dumps = sorted(folder.glob("flight-*.pickle"))
    rows = []
    for path in dumps:
        rank = int(path.stem.partition("-")[2])
        dump = pickle.loads(path.read_bytes())
        read = "; ".join(map(str, flights_in(dump, rank=rank))) or "nothing that has not ended"
        rows.append((path.name, str(dump.get("version", "–")), str(len(dump.get("entries") or ())), read))
    if vector.ok:
        raise SystemExit(f"two ranks that wait for each other returned\n{text}")
    return Measured(head=("dump", "format", "entries", "read as"), rows=tuple(rows), text=text)


_MEASUREMENTS: Mapping[str, Callable[[Call, Path], Measured]] = {
    "latency": latency,
    "communicators": communicators,
    "memory": memory,
    "bits": bits,
    "hang": hang,
}


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted(_MEASUREMENTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--ranks-per-device", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path())
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        hangs = asked.name == "hang"
        vector = run_on_ranks(
            function,
            *arguments,
            ranks=asked.ranks,
            device=asked.device,
            backend=asked.backend,
            ranks_per_device=asked.ranks_per_device,
            time_limit=_HANG_LIMIT if hangs else _LIMIT,
            idle_limit=2 * _DUMP_AFTER,
            record=hangs,
            environment={"MEASURED_DEVICE": asked.device, **({SIZE: "2000"} if hangs else {})},
        )
        return vector if hangs else vector.values

    measured = _MEASUREMENTS[asked.name](call, asked.out.resolve())
    for row in (measured.head, *measured.rows):
        print("  ".join(row))
    print(measured.text)
    (asked.out / MEASURED).write_bytes(msgspec.json.encode(measured))
    return 0


def _bytes(size: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


def _shares(found: Mapping[str, Any]) -> tuple[str, str, str]:
    if "error" in found:
        return found["error"], "–", "–"
    return f"{found['again']:.2%}", f"{found['CPU']:.2%}", f"{found['values']:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
