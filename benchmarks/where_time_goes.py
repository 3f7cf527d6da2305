"""Where the processor time of a run goes, per kind of process, in a table that adds up to what the kernel counted.

    python benchmarks/where_time_goes.py [ARGUMENTS of pipeconform run]

Without arguments, torch's own pipelining is judged at smoke. `sampled/sitecustomize.py` says how time is charged. What
it cannot see is the difference to the kernel's count: the ends of processes, and their last milliseconds.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from measure import ROOT, table

SAMPLED = ROOT / "benchmarks" / "sampled"
KINDS = ("controller", "fork server", "rank", "oracle")


def charged(folder):
    """User and system seconds by kind of process and label, and the number of processes by kind."""
    sys.path.append(str(SAMPLED))
    from sitecustomize import NAMED, NAMES

    seconds = defaultdict(lambda: [0.0, 0.0])
    processes = defaultdict(int)
    for path in folder.iterdir():
        data = path.read_bytes()
        kind = NAMED.unpack_from(data)[0].rstrip(b"\0").decode()
        processes[kind] += 1
        numbers = memoryview(data)[NAMED.size :].cast("d")
        for index, name in enumerate(NAMES):
            for part in range(4):
                seconds[kind, name][part % 2] += numbers[4 * index + part]
    return seconds, processes, NAMES


def main():
    arguments = sys.argv[1:] or ["--impl", "torch", "--profile", "smoke"]
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples"
        samples.mkdir()
        paths = [str(SAMPLED), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PIPECONFORM_SAMPLED": str(samples),
        }
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pipeconform", "run", "--out", folder, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=environment,
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"the run did not complete, exit code {done.returncode}\n{done.stdout[-4000:]}")
        elapsed = time.monotonic() - begun
        kernel = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, processes, names = charged(samples)
    show(seconds, processes, names, kernel)
    print(f"{elapsed:.1f} s by the clock, {kernel.ru_nvcsw + kernel.ru_nivcsw:,} switches")


def show(seconds, processes, names, kernel):
    """Print user + system seconds: a row per label, a column per kind of process."""

    def cell(kind, name):
        user, system = seconds[kind, name]
        return f"{user:.1f} + {system:.1f}" if user + system >= 0.05 else ""

    used = [name for name in names if sum(sum(seconds[kind, name]) for kind in KINDS) >= 0.05]
    used.sort(key=lambda name: -sum(sum(seconds[kind, name]) for kind in KINDS))
    sums = {kind: [sum(seconds[kind, name][i] for name in names) for i in range(2)] for kind in KINDS}
    whole = [sum(one[i] for one in sums.values()) for i in range(2)]
    rows = [
        (
            name,
            *(cell(kind, name) for kind in KINDS),
            f"{sum(sum(seconds[kind, name]) for kind in KINDS):.1f}",
        )
        for name in used
    ]
    counted = kernel.ru_utime, kernel.ru_stime
    unseen = [counted[i] - whole[i] for i in range(2)]
    table(
        ("user + system seconds", *(f"{kind} ({processes[kind]})" for kind in KINDS), "sum"),
        *rows,
        (
            "seen",
            *(f"{sums[kind][0]:.1f} + {sums[kind][1]:.1f}" for kind in KINDS),
            f"{whole[0]:.1f} + {whole[1]:.1f}",
        ),
        ("not seen: ends of processes", *([""] * len(KINDS)), f"{unseen[0]:.1f} + {unseen[1]:.1f}"),
        ("counted by the kernel", *([""] * len(KINDS)), f"{counted[0]:.1f} + {counted[1]:.1f}"),
    )


if __name__ == "__main__":
    main()
