"""A training step through the reference's data-parallel wrapper against DistributedDataParallel's: at most 1.3 times.

    python benchmarks/wrapper.py [--blocks N] [--steps N] [--width N] [--layers N]

Two processes on the CPU (gloo, one thread each), a chain of linear layers, both wrappers with their defaults, in the
same processes and turn by turn. A block's time is the slower rank's; what is reported is the ratio within a block.
"""

from __future__ import annotations

import time

from measure import options, summary, table

from pipeconform import run_on_ranks

RANKS = 2
BATCH = 16


def measure(blocks, steps, width, layers):
    """By wrapper the seconds per step of every block, on this rank."""
    import torch
    import torch.distributed as dist
    from pipeconform.reference_impl.data_parallel import DataParallel
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def model():
        torch.manual_seed(0)
        return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())))

    wrappers = {"reference": DataParallel(model()), "DDP": DistributedDataParallel(model())}
    x = torch.randn(BATCH, width)

    def block(wrapper):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(steps):
            wrapper.zero_grad()
            wrapper(x).sum().backward()
        return (time.perf_counter() - begun) / steps

    for wrapper in wrappers.values():  # buckets are rebuilt after the first step
        block(wrapper)
    found = {name: [] for name in wrappers}
    for index in range(blocks):
        for name in sorted(wrappers, reverse=bool(index % 2)):
            found[name].append(block(wrappers[name]))
    return found


def main():
    chosen = options(__doc__, blocks=20, steps=50, width=256, layers=8)
    values = run_on_ranks(
        measure, chosen.blocks, chosen.steps, chosen.width, chosen.layers, ranks=RANKS, time_limit=600.0
    ).values
    slower = {
        name: [max(pair) for pair in zip(*(one[name] for one in values), strict=True)] for name in values[0]
    }
    ratios = [ours / theirs for ours, theirs in zip(slower["reference"], slower["DDP"], strict=True)]
    rows = [(name, summary([1e3 * one for one in times], unit=" ms")) for name, times in slower.items()]
    table(
        ("step of", "median"), *rows, ("reference / DDP", f"{summary(ratios, digits=2)}; goal: at most 1.30")
    )


if __name__ == "__main__":
    main()
