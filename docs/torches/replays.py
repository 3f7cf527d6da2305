"""Run the stored cases of the changes on each installed release, and keep what they show.

    python docs/torches/replays.py --environments .venv-torches [RELEASE ...]

A case is in ``cases/`` and named after its requirement: ``trn-9-gpipe-1f3a9c.json``. What ``pipeconform replay`` says
of it with each release is kept in ``replays.json``: ``met``, or what is violated. What is kept is not run again.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import environments

HERE = Path(__file__).resolve().parent
CASES, KEPT = HERE / "cases", HERE / "replays.json"
LIMIT = 600  # seconds for a case
NOT_RUN = "not run"


def main() -> None:
    """Run what is missing, and store it after each case."""
    environments.run_on_each(
        sorted(CASES.glob("*.json")),
        doc=__doc__ or "",
        kept=KEPT,
        run=replayed,
        is_result=lambda shown: not shown.startswith(NOT_RUN),
    )


def stored() -> dict[str, dict[str, str]]:
    """By case and release, what was shown."""
    return environments.stored(KEPT)


def replayed(case: Path, *, python: Path) -> str:
    """``met``, or what the case shows."""
    chapter, number, _ = case.stem.split("-", 2)
    impl = "torch-ddp" if chapter == "dpw" else "torch"
    command = [str(python), "-W", "ignore", "-m", "pipeconform", "replay", str(case), "--impl", impl]
    try:
        done = subprocess.run(
            [*command, "--requirement", f"{chapter.upper()}-{number}"],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            cwd=tempfile.gettempdir(),
        )
    except subprocess.TimeoutExpired:
        return f"{NOT_RUN}: did not end within {LIMIT} s"
    if done.returncode == 0:
        return "met"
    found = re.search(r"^VIOLATED:\n(.+(?:\n.+)?)", done.stdout, re.MULTILINE)
    if found is None:
        return f"{NOT_RUN}: exit code {done.returncode}: {done.stderr.strip()[-200:]}"
    text = found[1]
    return " ".join(re.sub(r"\[\d+\.\d+\.\d+\.\d+\]:\d+\S*", "[address]", text).split())[:240]


if __name__ == "__main__":
    sys.exit(main())
