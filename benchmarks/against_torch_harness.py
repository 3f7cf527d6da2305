"""The same 200 two-rank checks in a pool and in the two harnesses that torch's own tests use.

    python benchmarks/against_torch_harness.py [--blocks N] [--checks N]

`MultiProcessTestCase` spawns two processes per test: 20 checks are measured and their time is scaled.
`MultiProcContinuousTest` spawns them once per class, as a pool does. Everything counts, from the start of
the interpreter to its end. Goals: 50 times faster than the first, not slower than the second. torch's
harnesses need expecttest (the extra "bench").
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from measure import ROOT, options, summary, table
from two_rank_checks import COUNT

SCRIPT = ROOT / "benchmarks" / "two_rank_checks.py"
SPAWNED = 20


def whole(harness, count, *, scaled_to=None):
    """Seconds of a process that does nothing else, its checks scaled to another number of them."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), harness, str(count)],
        env={**os.environ, COUNT: str(count), "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )
    spent = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{harness}: the checks failed\n{done.stderr[-4000:]}")
    checks = float(done.stdout.split()[-1])
    return spent if scaled_to is None else spent - checks + checks * scaled_to / count


def main():
    chosen = options(__doc__, blocks=5, checks=200)
    pool, continuous = [], []
    for block in range(chosen.blocks):
        contenders = [(pool, "pool"), (continuous, "continuous")]
        for seconds, name in reversed(contenders) if block % 2 else contenders:
            seconds.append(whole(name, chosen.checks))
    spawn = [whole("spawn", SPAWNED, scaled_to=chosen.checks) for _ in range(min(2, chosen.blocks))]
    ratios = [theirs / ours for theirs, ours in zip(continuous, pool, strict=True)]
    middle = statistics.median(pool)
    table(
        (f"{chosen.checks} two-rank checks, {chosen.blocks} blocks", "median [95 % interval]"),
        ("pool", summary(pool, unit=" s")),
        ("MultiProcContinuousTest", summary(continuous, unit=" s")),
        (f"MultiProcessTestCase, {SPAWNED} scaled", summary(spawn, unit=" s", digits=1)),
        ("MultiProcContinuousTest / pool, goal at least 1", summary(ratios)),
        ("MultiProcessTestCase / pool, goal at least 50", summary([s / middle for s in spawn], digits=1)),
    )


if __name__ == "__main__":
    main()
