"""Run the scripts of docs/findings that are about torch on each installed release, and keep what they print.

    python docs/torches/scripts.py --environments .venv-torches [RELEASE ...] [--only dry-run]

A script's output is compared with the one stored beside it. What was run is kept in ``scripts.json`` and not run again:
``as stored``, or what the script printed instead. ``causes.toml`` says what the other outputs mean.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import environments

FINDINGS = environments.ROOT / "docs" / "findings"
KEPT = Path(__file__).resolve().parent / "scripts.json"
NUMBER = re.compile(r"(-?\d+\.\d+)")
SPOKEN = re.compile(r"\[Gloo\] Rank (?:\d+|(?=\[Gloo\]))[^\n\[]*\n?")  # to standard output, by torch 2.9
PEERS = "connected peer ranks"  # the rest of such a line, where ranks have interrupted one another
AS_STORED = "as stored"
LIMIT = 300  # seconds for a script
LONGEST = 1500  # characters that are kept of an output


def main() -> None:
    """Run what is missing, and store it after each script."""
    environments.run_on_each(
        sorted(FINDINGS.glob("torch-*.py")),
        doc=__doc__ or "",
        kept=KEPT,
        run=run,
        is_result=lambda shown: "no result" not in shown,  # processes get a minute: this machine is too busy
    )


def run(script: Path, *, python: Path) -> str:
    """`AS_STORED`, or what the script printed, with the last line of an error."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [str(python), "-W", "ignore", str(script)],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"did not end within {LIMIT} s"
    printed = "".join(line for line in SPOKEN.sub("", done.stdout).splitlines(True) if PEERS not in line)
    if done.returncode == 0 and alike(printed, script.with_suffix(".txt").read_text("utf-8")):
        return AS_STORED
    text = printed.strip()
    if done.returncode:
        text += f"\n[exit code {done.returncode}] {_error(done.stderr)}"
    return re.sub(r"/\S*/site-packages/", "", text).strip()[:LONGEST] or "printed nothing"


def alike(actual: str, expected: str) -> bool:
    """Whether two outputs are equal, up to the rounding of decimal numbers."""
    a, b = NUMBER.split(actual), NUMBER.split(expected)
    return a[::2] == b[::2] and all(
        abs(float(x) - float(y)) <= 1e-3 for x, y in zip(a[1::2], b[1::2], strict=True)
    )


def _error(text: str) -> str:
    lines = [
        line.strip() for line in text.splitlines() if re.match(r"\s*\w+(\.\w+)*(Error|Exception)\b", line)
    ]
    return lines[-1][:300] if lines else (text.strip().splitlines() or [""])[-1][:300]


if __name__ == "__main__":
    sys.exit(main())
