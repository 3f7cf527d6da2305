"""How long until a disaster has its verdict, and until the pool is whole again.

    python benchmarks/disasters.py [--blocks N]

Two ranks, one pool, all kinds of disaster in turn. The verdict is timed from the start of the task to the
verdict that names the failure; the recovery from there until every rank of the new group is set up and has
taken part in an all-reduce. Goals: a hang explained in under 3 s, a death told in under 0.3 s, recovery under
0.5 s.
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from measure import options, summary, table

from pipeconform.ranks.pools import Pools
from pipeconform.ranks.recording.recorder import Recorder

GOALS = {"hang": "3 s", "death": "0.3 s", "exception": "none"}


def _rank_1_waits(context):
    if context.rank == 1:
        dist.recv(torch.zeros(1), src=0)


def killed(context, _payload):
    """Rank 0 is killed by SIGKILL, as by a kernel that is out of memory."""
    if context.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _rank_1_waits(context)


def aborted(context, _payload):
    """Rank 0 aborts."""
    if context.rank == 0:
        os.abort()
    _rank_1_waits(context)


def left(context, _payload):
    """Rank 0 ends with exit code 0."""
    if context.rank == 0:
        os._exit(0)
    _rank_1_waits(context)


def raised(context, _payload):
    """Rank 0 raises while rank 1 waits for it."""
    if context.rank == 0:
        raise ValueError("on purpose")
    _rank_1_waits(context)


def hung(context, _payload):
    """Both wait for each other; torch's own frames tell for whom."""
    dist.recv(torch.zeros(1), src=1 - context.rank)


def hung_recorded(context, _payload):
    """The same with communication recorded: it is proved."""
    with Recorder().recording():
        hung(context, _payload)


def stopped(context, _payload):
    """Rank 0 is stopped by SIGSTOP while rank 1 waits for it."""
    if context.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    _rank_1_waits(context)


def total(context, _payload):
    """Needs every rank and the whole group."""
    value = torch.tensor([context.rank + 1.0])
    dist.all_reduce(value)
    return value.item()


KINDS = {
    "killed": "death",
    "aborted": "death",
    "left": "death",
    "raised": "exception",
    "stopped": "hang",
    "hung": "hang",
    "hung_recorded": "hang",
}


def main():
    chosen = options(__doc__, blocks=10)
    verdicts, recoveries = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}
    preload = ("torch", "torch.distributed", "pipeconform.ranks.recording.recorder", "disasters")
    with Pools(preload=preload) as pools:
        pool = pools.of_size(2)
        for _ in range(chosen.blocks):
            for kind in KINDS:
                pool.wait_until_formed()
                begun = time.monotonic()
                vector = pool.run(f"disasters:{kind}", time_limit=60)
                known = time.monotonic()
                assert not vector.ok
                assert not kind.startswith("hung") or "a circle" in vector.waiting, vector.explain()
                assert pool.run("disasters:total", time_limit=60).values == (3.0, 3.0)
                verdicts[kind].append(known - begun)
                recoveries[kind].append(time.monotonic() - known)
    table(
        ("rank 0 is", "all verdicts, median [95 % interval]", "goal", "whole again", "goal"),
        *(
            (
                kind.replace("_", ", "),
                summary(verdicts[kind], unit=" s"),
                GOALS[goal],
                summary(recoveries[kind], unit=" s"),
                "0.5 s",
            )
            for kind, goal in KINDS.items()
        ),
    )


if __name__ == "__main__":
    main()
