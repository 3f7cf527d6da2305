"""A step of the reference, all its validation on, against a step of torch.distributed.pipelining.

    python benchmarks/step_time.py [--blocks N] [--steps N]

The same stages under 1F1B with 8 microbatches, 2 and 4 ranks, small stages (messages and Python decide) and
large ones (arithmetic does). torch's default checks nothing at run time; with TORCH_DISTRIBUTED_DEBUG=DETAIL it
checks what the reference always does, and more. Goals: at most 1.25 times torch's default, less than torch's
DETAIL. Both engines' gradients are compared before anything is measured.
"""

from __future__ import annotations

import sys

import msgspec
import torch
from measure import options, summary, table
from step_ranks import STEPS, Block

from pipeconform.ranks.environment import Environment
from pipeconform.ranks.pools import Pools

PRELOAD = ("torch", "torch.distributed", "torch.distributed.pipelining", "step_ranks")
SIZES = {"small": (32, 4), "large": (256, 64)}
"""Width, and rows of a microbatch."""
MICROBATCHES = 8


class Engine:
    """One engine in one environment."""

    def __init__(self, pools, engine, *, size, num_ranks, steps):
        width, rows = SIZES[size]
        block = Block(engine, width, rows, MICROBATCHES, steps)
        self._pool = pools.of_size(num_ranks)
        self._payload = msgspec.json.encode(block)

    def ask(self, task):
        """What all ranks return for a task of `step_ranks`."""
        vector = self._pool.run(task, self._payload, time_limit=120)
        assert vector.ok, vector.describe()
        return vector.values

    def block(self):
        """Seconds."""
        return max(self.ask(STEPS))


def same(first, second):
    """Whether two engines have the same gradients."""
    for mine, theirs in zip(
        first.ask("step_ranks:gradients"), second.ask("step_ranks:gradients"), strict=True
    ):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


def measured(engines, *, blocks):
    """Seconds of each engine's blocks; who begins takes turns."""
    found = [[] for _ in engines]
    for block in range(blocks):
        for offset in range(len(engines)):
            n = (block + offset) % len(engines)
            found[n].append(engines[n].block())
        print(f"block {block + 1} of {blocks}: {[f'{one[-1]:.3f}' for one in found]} s", file=sys.stderr)
    return found


def main():
    chosen = options(__doc__, blocks=30, steps=10)
    detail = Environment("detail", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    rows = [(f"1F1B, m = {MICROBATCHES}, {chosen.blocks} blocks", "reference", "/ torch", "/ torch DETAIL")]
    with Pools(preload=PRELOAD) as plain, Pools(detail, preload=PRELOAD) as checked:
        for num_ranks in (2, 4):
            for size in SIZES:
                engines = [
                    Engine(pools, name, size=size, num_ranks=num_ranks, steps=chosen.steps)
                    for pools, name in ((plain, "reference"), (plain, "torch"), (checked, "torch"))
                ]
                same(engines[0], engines[1])
                same(engines[0], engines[2])
                ours, default, debug = measured(engines, blocks=chosen.blocks)
                rows.append(
                    (
                        f"p = {num_ranks}, {size} stages",
                        summary([1000 * s / chosen.steps for s in ours], unit=" ms", digits=1),
                        summary([a / b for a, b in zip(ours, default, strict=True)]),
                        summary([a / b for a, b in zip(ours, debug, strict=True)]),
                    )
                )
    table(*rows, ("goal", "", "at most 1.25", "below 1.0"))


if __name__ == "__main__":
    main()
