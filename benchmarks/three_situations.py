"""A killed rank, a failure before other tests, and a hang: in the harnesses of torch's own tests and in ours.

    python benchmarks/three_situations.py [--limit SECONDS] [--show 1]

Each in a process of its own, which is ended after the limit. What is asked: does the test fail, how soon, do
the tests after it still run, and does the output name the rank and what happened to it (the signal, the line
of the test's code, whom it waits for). torch's harnesses need expecttest (the extra "bench").
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

from measure import ROOT, options, table

SCRIPT = ROOT / "benchmarks" / "situations.py"
HARNESSES = {
    "spawn": "MultiProcessTestCase",
    "continuous": "MultiProcContinuousTest",
    "pool": "run_on_ranks",
}
NAMED = {
    # what the output must contain for a reader to know what happened
    "killed": {"rank 1": r"(rank|process) 1\b", "the signal": r"SIGKILL|signal 9|code:? -9"},
    "failure": {"rank 1": r"(rank|process) 1\b", "the failing line": r"in fail_on_rank_1"},
    "hang": {"the line": r"in wait_for_each_other", "whom it waits for": r"receive .*from rank"},
}


def outcome(harness, situation, limit):
    """Seconds, and everything that was printed."""
    environment = {
        **os.environ,
        "SITUATION_HARNESS": harness,
        "SITUATION": situation,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            text, _ = run.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            text, _ = run.communicate()
            return time.monotonic() - begun, None, text
    return time.monotonic() - begun, run.returncode, text


def reported(code, text):
    """What the harness says became of the tests."""
    if code is None:
        return "no report"
    counts = re.findall(r"(failures|errors|skipped)=(\d+)", text)
    return ("OK" if code == 0 else "failed") + "".join(f", {number} {what}" for what, number in counts)


def main():
    chosen = options(__doc__, blocks=1, limit=150, show=0)
    rows = [("situation", "harness", "report", "seconds", "names")]
    for situation, wanted in NAMED.items():
        for harness, title in HARNESSES.items():
            spent, code, text = outcome(harness, situation, chosen.limit)
            names = [what for what, pattern in wanted.items() if re.search(pattern, text, re.IGNORECASE)]
            rows.append(
                (situation, title, reported(code, text), f"{spent:.1f}", ", ".join(names) or "nothing")
            )
            if chosen.show:
                print(f"--- {situation}, {title}\n{text[-6000:]}", file=sys.stderr)
    table(*rows)


if __name__ == "__main__":
    main()
