"""What two worker processes gain, or cost: a run with `-n 2` against the same run in one process.

    python benchmarks/workers.py [--blocks N]

Profile smoke on the reference, ranks 1 to 3, whole runs from the command line, block by block. Goals: never slower
on two cores, at least 1.5 times as fast on four or more.
"""

from __future__ import annotations

import os
import tempfile

from measure import alternate, options, pipeconform, summary, table


def run(*more):
    with tempfile.TemporaryDirectory() as folder:
        asked = ("--impl", "reference", "--profile", "smoke", "--ranks", "1-3", "--out", folder, "--quiet")
        pipeconform("run", *asked, *more)


def main():
    chosen = options(__doc__, blocks=3)
    two, one = alternate(lambda: run("-n", "2"), run, blocks=chosen.blocks)
    cores = len(os.sched_getaffinity(0))
    table(
        (f"profile smoke, {cores} cores, {chosen.blocks} blocks", "median [95 % interval]"),
        ("one process", summary(one, unit=" s", digits=1)),
        ("two workers", summary(two, unit=" s", digits=1)),
        ("ratio, goal at most 1", summary([a / b for a, b in zip(two, one, strict=True)], digits=2)),
    )


if __name__ == "__main__":
    main()
