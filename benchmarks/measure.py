"""What the benchmarks share: alternating blocks, and medians with their 95 % intervals.

A shared machine is now fast, now slow. Two things are compared block by block, each block next to its
partner and the order turned every time; the ratio is that of a pair, and the median of the ratios is
reported with the interval between two of them that covers it with 95 % (order statistics, no assumption
about the distribution). Nothing here ever fails because of a clock.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def options(description, *, blocks, **numbers):
    """Read ``--blocks N``, and other numbers by name with their defaults."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=blocks, help=f"blocks to measure (default {blocks})")
    for name, default in numbers.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default}"
        )
    return parser.parse_args()


def seconds(call):
    """How long `call` takes, without a garbage collection that others left to do."""
    gc.collect()
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def alternate(first, second, *, blocks):
    """Seconds of both, block by block; who begins alternates."""
    pairs = []
    for block in range(blocks):
        if block % 2:
            late = seconds(second)
            pairs.append((seconds(first), late))
        else:
            early = seconds(first)
            pairs.append((early, seconds(second)))
        print(f"block {block + 1} of {blocks}: {pairs[-1][0]:.3f} s, {pairs[-1][1]:.3f} s", file=sys.stderr)
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def pipeconform(*arguments, cwd=ROOT):
    """Run a command of pipeconform to its end, silently; end with its last output if it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeconform", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}\n{done.stdout[-4000:]}")


def interval(values):
    """Two of `values` that enclose their median with at least 95 %; the extremes where there are too few."""
    ordered, n = sorted(values), len(values)
    rank, below = 0, 0.5**n
    while below + math.comb(n, rank + 1) * 0.5**n <= 0.025:
        rank += 1
        below += math.comb(n, rank) * 0.5**n
    return ordered[rank], ordered[n - 1 - rank]


def summary(values, *, unit="", digits=3):
    """``median [low, high]`` with the unit."""
    low, high = interval(values)
    return f"{statistics.median(values):.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]"


def table(*rows):
    """Print rows of two or more cells, aligned."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())
