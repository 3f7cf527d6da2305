"""How long `pipeconform run --impl torch --profile smoke` takes from a set-up environment, and what it ran.

    python benchmarks/smoke.py [--blocks N]

Goals: under 90 s, with at least 300 distinct executions at p >= 2.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import options, summary, table


def run():
    """Seconds of one run, and its result."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["run", "--impl", "torch", "--profile", "smoke", "--out", folder]
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", "from pipeconform.cli import main; main()", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        spent = time.perf_counter() - begun
        if done.returncode not in (0, 1):
            raise SystemExit(f"the run did not complete, exit code {done.returncode}\n{done.stdout[-4000:]}")
        return spent, json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))


def main():
    chosen = options(__doc__, blocks=3)
    spent, result = [], {}
    for _ in range(chosen.blocks):
        seconds, result = run()
        spent.append(seconds)
    totals = result["totals"]
    table(
        (f"profile smoke, {chosen.blocks} runs", "median [95 % interval]"),
        ("whole run, goal under 90 s", summary(spent, unit=" s", digits=1)),
        ("distinct executions at p >= 2, goal at least 300", str(totals["distinct_cases_several_ranks"])),
        ("executions", str(totals["executions"])),
        ("judgements", str(totals["judgements"])),
    )


if __name__ == "__main__":
    main()
