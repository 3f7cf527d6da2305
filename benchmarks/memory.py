"""Resident memory of the controller and of every rank over 2,000 cases; the goal is a flat line.

    python benchmarks/memory.py [--cases N]

The cases are those of `cases.json` with ever other seeds, executed and judged as in a run. The controller
keeps the oracle's last 128 bounded answers and is flat once there are as many; gloo's store keeps a few
keys for every group there ever was, in every rank.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import msgspec
from measure import options, table
from overhead import IMPLEMENTATION, Harness, stored_cases

from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.preload import PRELOAD
from pipeconform.ranks.pools import Pools

MOMENTS = 4


def resident(pid):
    """MiB that `pid` holds in memory, without pages shared with others of the file system."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    )
    return int(fields["RssAnon"].split()[0]) / 1024


def processes(pools):
    found = {"controller": os.getpid(), "oracle": pools.oracle.pids[0]}
    for size in sorted(pools.sizes):
        for rank, pid in enumerate(pools.of_size(size).pids):
            found[f"rank {rank} of {size}"] = pid
    return found


def main():
    chosen = options(__doc__, blocks=1, cases=2000)
    stored = stored_cases()
    with Pools(preload=PRELOAD) as pools:
        executor = Executor(
            implementation=IMPLEMENTATION, description=describe(pools, IMPLEMENTATION), pools=pools
        )
        Harness(executor, stored).block()  # imports, caches, allocators
        begun, known = time.monotonic(), processes(pools)
        seen = [[resident(pid) for pid in known.values()]]
        cases = itertools.cycle(stored)
        done, each = 0, -(-chosen.cases // MOMENTS)
        while done < chosen.cases:
            some = list(itertools.islice(cases, min(each, chosen.cases - done)))
            other = [msgspec.structs.replace(case, seed=64 + done + i) for i, case in enumerate(some)]
            Harness(executor, other).block()
            done += len(some)
            seen.append([resident(pid) for pid in known.values()])
        assert processes(pools) == known, "a pool was replaced: memory of other processes was measured"
        spent = time.monotonic() - begun
    heads = [str(min(moment * each, chosen.cases)) for moment in range(len(seen))]
    rows = [("MiB after cases", *heads, "per 1,000 cases, second half")]
    for index, name in enumerate(known):
        values = [moment[index] for moment in seen]
        half = len(values) // 2
        growth = (values[-1] - values[half]) / (chosen.cases - min(half * each, chosen.cases - 1)) * 1000
        rows.append((name, *(f"{value:.1f}" for value in values), f"{growth:+.2f}"))
    table(*rows)
    print(f"{chosen.cases} cases in {spent:.0f} s")


if __name__ == "__main__":
    main()
