"""How long a pool takes to be whole again after the verdict on a rank that died or is stuck.

    python benchmarks/recovery.py [--blocks N]

From the moment at which the last verdict of the task is known to the moment at which every rank of the
new group is set up: stacks, kill, fork, rendezvous. Goal: under 0.5 s.
"""

from __future__ import annotations

import os
import signal
import time

from measure import options, summary, table

from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import Stuck

RANKS = (2, 4)


def killed(context, _payload):
    """The last rank is killed; the others wait for it."""
    import torch.distributed as dist

    if context.rank == context.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def stuck(context, _payload):
    """The last rank never comes."""
    import torch.distributed as dist

    if context.rank == context.world_size - 1:
        time.sleep(3600)
    dist.barrier()


def recovered(pool, how):
    """Seconds from the last verdict until the pool is whole."""
    pool.wait_until_formed()
    begun = time.monotonic()
    vector = pool.run(f"recovery:{how}", time_limit=60)
    assert not vector.ok
    verdict = begun + max(one.seconds if isinstance(one, Stuck) else one.after for one in vector)
    pool.wait_until_formed()
    return time.monotonic() - verdict


def main():
    chosen = options(__doc__, blocks=20)
    rows = [("a rank is", "p", f"whole again after, {chosen.blocks} times, median [95 % interval]", "worst")]
    with Pools(preload=("torch", "torch.distributed", "recovery"), idle_limit=0.5) as pools:
        for how in ("killed", "stuck"):
            for size in RANKS:
                found = [recovered(pools.of_size(size), how) for _ in range(chosen.blocks)]
                rows.append((how, str(size), summary(found, unit=" s"), f"{max(found):.3f} s"))
    table(*rows)


if __name__ == "__main__":
    main()
