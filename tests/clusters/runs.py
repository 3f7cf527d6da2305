"""The run that every engine is asked for, and what of its result must be the same everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WRONG = "pipeconform.reference_impl.faults.scale:NotDivided"
ASKED = ("--profile", "smoke", "--schedules", "GPipe,1F1B", "--requirements", "FWD-1,TRN-1,TRN-3")
SIZES = ("--ranks", "1-2", "--examples", "3")
CELLS = 6
TINY = (
    "--profile",
    "smoke",
    "--schedules",
    "GPipe",
    "--requirements",
    "FWD-1,TRN-3",
    *SIZES[:2],
    "--examples",
    "2",
)
_results: dict[tuple[str, ...], list[Any]] = {}


def local(folder: Path, impl: str, asked: tuple[str, ...] = (*ASKED, *SIZES)) -> list[Any]:
    """What the same run finds without a cluster; executed once per process."""
    if (impl, *asked) not in _results:
        command = [sys.executable, "-m", "pipeconform", "run", "--impl", impl, *asked, "--out", "local"]
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=900)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        _results[impl, *asked] = found(result_in(folder / "local"))
    return _results[impl, *asked]


def result_in(folder: Path) -> Any:
    """The result of the run with this ``--out``."""
    return json.loads((folder / "result.json").read_text())


def found(result: Any) -> list[Any]:
    """What was judged and found; where ranks were and how long it took differ."""
    told = ("id", "status", "signature", "digest")
    return [
        (
            *(cell.get(key) for key in ("requirement", "schedule", "status", "judgements", "compared")),
            [[violation.get(key) for key in told] for violation in cell.get("violations", [])],
        )
        for cell in result["cells"]
    ]


def judged(out: Path) -> int:
    """How many cells the journal has."""
    return sum(len(path.read_text().splitlines()) for path in out.glob(".run/cells.*"))


def await_cells(out: Path, number: int, *, limit: float = 900.0) -> None:
    """Wait until so many cells are judged."""
    deadline = time.monotonic() + limit
    while judged(out) < number:
        assert time.monotonic() < deadline, "no cell was judged"
        time.sleep(0.05)
