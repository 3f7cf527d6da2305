"""Everything that is to be known of pipeconform on an accelerator, in one command that can be interrupted and repeated.

    python -m benchmarks.gpu [--device cuda] [--out gpu-results] [--within SECONDS] [PART …]

Parts that are done are not run again; every part takes less than ten minutes, and ``--within`` ends the command in time
for a machine that is lent for so long. ``--list`` shows the parts. ``report.html`` in the folder is written after each.
"""

from __future__ import annotations

import argparse
import lzma
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.page import write_page
from benchmarks.gpu.parts import Part, Target, parts_on
from benchmarks.gpu.running import Record, record_in, run_part
from pipeconform.errors import PipeconformError, UsageError
from pipeconform.ranks.devices import probe, resolve

PART_LIMIT = 540.0  # seconds
_LOADED = "import torch; from pipeconform.ranks.probing import nccl_release; print(*nccl_release() or ())"
LEAST = 20.0  # seconds: no part is begun with less left


def main() -> int:
    """0 if everything that can run here is done, 1 if a part failed, 2 if some are left, 3 if nothing can run."""
    asked = parser_of_options().parse_args()
    out: Path = asked.out.resolve()
    try:
        target = _target(asked, out)
    except PipeconformError as error:
        print(error)
        return 3
    out.mkdir(parents=True, exist_ok=True)
    parts = parts_on(target)
    unknown = sorted(set(asked.parts) - {part.name for part in parts})
    if unknown:
        print(f"unknown: {', '.join(unknown)}; parts are {', '.join(part.name for part in parts)}")
        return 3
    if asked.list:
        for part in parts:
            kept = record_in(out, part)
            print(f"{part.name:<28}  {part.missing or (kept.state if kept else 'not run yet')}")
        return 0
    ends = time.monotonic() + asked.within
    for part in parts:
        _go_on(part, out, again=part.name in asked.parts, wanted=not asked.parts, ends=ends)
        write_page(_records(out, parts), target=target, results=out)
    records = _records(out, parts)
    write_page(records, target=target, results=out)
    print(f"{out / 'report.html'}: {_summary(records, parts)}")
    if any(one.state == "failed" for one in records):
        return 1
    return 2 if len(records) < len(parts) or any(one.state == "cut off" for one in records) else 0


def _go_on(part: Part, out: Path, *, again: bool, wanted: bool, ends: float) -> None:
    kept = record_in(out, part)
    if not again and (not wanted or (kept is not None and kept.state == "done")):
        return
    left = ends - time.monotonic()
    if not part.missing and left < LEAST:
        return
    if not part.missing:
        print(f"{part.name}: {part.title}", flush=True)
    record = run_part(part, results=out, limit=min(PART_LIMIT, left))
    said = record.why if record.state == "missing" else f"{record.seconds:.0f} s, exit code {record.code}"
    print(f"{part.name}: {record.state} ({said})", flush=True)


def _records(out: Path, parts: tuple[Part, ...]) -> list[Record]:
    return [found for part in parts if (found := record_in(out, part)) is not None]


def _summary(records: list[Record], parts: tuple[Part, ...]) -> str:
    states = [one.state for one in records]
    counted = (
        f"{states.count(one)} {one}" for one in ("done", "failed", "cut off", "missing") if one in states
    )
    left = len(parts) - len(records)
    return ", ".join([*counted, *([f"{left} not run yet"] if left else [])])


def _target(asked: argparse.Namespace, out: Path) -> Target:
    machine = probe(asked.device)
    if machine.error is None and machine.count == 0:
        raise UsageError(
            f"torch finds no {machine.device_type} device on this machine, so nothing was run; "
            f"'pipeconform doctor --device {machine.device_type}' says more, --device names another kind"
        )
    devices = resolve(asked.device, backend=asked.backend, machine=machine)
    library = str(_unpacked(asked.nccl, out)) if asked.nccl else ""
    return Target(
        machine=machine,
        backend=devices.backend,
        library=library,
        shared_release=_release(library) if library else machine.nccl,
        profile=asked.profile,
        schedules=asked.schedules,
        requirements=tuple(asked.requirements.split(",")) if asked.requirements else (),
    )


def _unpacked(library: Path, out: Path) -> Path:
    if library.suffix != ".xz":
        return library.resolve()
    unpacked = out / library.stem
    if not unpacked.exists():
        out.mkdir(parents=True, exist_ok=True)
        part = unpacked.with_name(f"{unpacked.name}.part")
        part.write_bytes(lzma.decompress(library.read_bytes()))
        part.replace(unpacked)
    return unpacked


def _release(library: str) -> tuple[int, ...] | None:
    """The release that torch loads if this library of NCCL's is preloaded."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED],
        env={**os.environ, "LD_PRELOAD": library},
        capture_output=True,
        text=True,
        check=False,
    )
    numbers = done.stdout.split()
    return tuple(map(int, numbers)) if numbers and all(one.isdigit() for one in numbers) else None


def parser_of_options() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="run these again (default: all that are not done)"
    )
    parser.add_argument("--device", default="cuda", help="a torch device type (default: cuda)")
    parser.add_argument("--backend", default="auto", help="default: torch's own for the device")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="default: gpu-results")
    parser.add_argument(
        "--within", type=float, default=float("inf"), metavar="SECONDS", help="stop after so long"
    )
    parser.add_argument("--profile", default="smoke", help="of what is judged (default: smoke)")
    parser.add_argument("--requirements", default="", metavar="IDS", help="judge these only (default: all)")
    parser.add_argument(
        "--schedules", default="", metavar="A,B", help="judge under these only (default: all)"
    )
    parser.add_argument(
        "--nccl", type=Path, metavar="FILE", help="a libnccl.so.2, or .xz of one, for ranks that share a GPU"
    )
    parser.add_argument("--list", action="store_true", help="show the parts and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
