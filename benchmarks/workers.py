"""What several processes of a run gain, or cost: a run with `-n N` against the same run in one process.

    python benchmarks/workers.py [--blocks N] [--workers 2] [--waiting 0]

Profile smoke on the reference, ranks 1 to 3, whole runs from the command line, block by block. Goals on two cores: at
least 1.3 times as fast; on four or more at least 1.5 times. With `--waiting 500` the engine waits so many milliseconds
for every world, as one does whose ranks are elsewhere, and few requirements are asked for: then the run should be
nearly as many times as fast as it has processes, whatever the number of cores.
"""

from __future__ import annotations

import os
import tempfile

from measure import ROOT, alternate, options, pipeconform, summary, table

FEW = ("--requirements", "FWD-1,FWD-2,FWD-4,TRN-1,TRN-3")


def run(waiting, *more):
    impl = ("--impl", f"{ROOT}/benchmarks/waiting.py:Waiting", *FEW) if waiting else ("--impl", "reference")
    with tempfile.TemporaryDirectory() as folder:
        asked = (*impl, "--profile", "smoke", "--ranks", "1-3", "--out", folder, "--quiet")
        pipeconform("run", *asked, *more)


def main():
    chosen = options(__doc__, blocks=3, workers=2, waiting=0)
    os.environ["WAITING"] = str(chosen.waiting / 1000)
    several, one = alternate(
        lambda: run(chosen.waiting, "-n", str(chosen.workers)),
        lambda: run(chosen.waiting),
        blocks=chosen.blocks,
    )
    cores = len(os.sched_getaffinity(0))
    what = f"an engine that waits {chosen.waiting} ms" if chosen.waiting else "the reference"
    table(
        (f"profile smoke on {what}, {cores} cores, {chosen.blocks} blocks", "median [95 % interval]"),
        ("one process", summary(one, unit=" s", digits=1)),
        (f"{chosen.workers} processes", summary(several, unit=" s", digits=1)),
        ("times as fast", summary([a / b for a, b in zip(one, several, strict=True)], digits=2)),
    )


if __name__ == "__main__":
    main()
