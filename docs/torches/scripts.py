"""Run the scripts of docs/findings that are about torch on each installed release, and keep what they print.

    python docs/torches/scripts.py --environments .venv-torches [RELEASE ...] [--only dry-run]

A script's output is compared with the one stored beside it. What was run is kept in ``scripts.json`` and not run again:
``as stored``, or what the script printed instead. `verdicts.toml` says what the other outputs mean.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import environments

FINDINGS = environments.ROOT / "docs" / "findings"
KEPT = Path(__file__).resolve().parent / "scripts.json"
NUMBER = re.compile(r"(-?\d+\.\d+)")
AS_STORED = "as stored"
LIMIT = 300  # seconds for a script
LONGEST = 1500  # characters that are kept of an output


def main() -> None:
    """Run what is missing, and store it after each script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("releases", nargs="*", metavar="RELEASE", default=environments.RELEASES)
    parser.add_argument("--environments", type=Path, default=Path(".venv-torches"))
    parser.add_argument("--only", metavar="PART", default="", help="scripts whose name contains this")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    for release in asked.releases:
        folder = (asked.environments / release).resolve()
        if not (folder / "ready.json").exists():
            print(f"{release}: skipped, no environment; make torches installs it", flush=True)
            continue
        for script in sorted(FINDINGS.glob("torch-*.py")):
            kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
            if asked.only not in script.stem or (release in kept.get(script.stem, {}) and not asked.again):
                continue
            shown = run(script, python=environments.interpreter(folder))
            print(f"{release} {script.stem}: {shown.splitlines()[0][:100]}", flush=True)
            if "no result" in shown:  # the script gives its processes a minute: this machine is too busy
                continue
            kept = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
            kept.setdefault(script.stem, {})[release] = shown
            KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")


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
    if done.returncode == 0 and alike(done.stdout, script.with_suffix(".txt").read_text("utf-8")):
        return AS_STORED
    text = done.stdout.strip()
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
