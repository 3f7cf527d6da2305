"""What observing the timeline costs a step: the same case with it and without.

    python benchmarks/timeline_overhead.py [--blocks N] [--steps N]

Two ranks, 8 microbatches; stages as the suite draws them, which are small, and twice as many layers as it
draws at most. Goal: at most 1.3 times the step without.
"""

from __future__ import annotations

import sys

import msgspec
from measure import options, summary, table
from step_ranks import WATCHED, Watch

from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.run.pools import Pools

PRELOAD = ("torch", "torch.distributed", "torch.distributed.pipelining", "step_ranks")
ENGINES = {"reference": ("1F1B", "ZB-H1"), "torch": ("1F1B", "InterleavedZeroBubble")}


def case_of(schedule):
    stage = Stage(blocks=(blocks.Linear(), blocks.Linear(), blocks.Linear()))
    return Case(
        model=Model(width=8, stages=(stage, stage)),
        schedule=schedule,
        world=World(size=2, pipeline_ranks=(0, 1)),
        program=(Train(batch_size=32, num_microbatches=8),),
    )


def main():
    chosen = options(__doc__, blocks=30, steps=10)
    rows = [(f"p = 2, m = 8, {chosen.blocks} blocks", "without", "with / without")]
    with Pools(preload=PRELOAD) as pools:
        for engine, schedules in ENGINES.items():
            for schedule in schedules:
                payloads = [
                    msgspec.json.encode(Watch(engine, case_of(schedule), timeline, chosen.steps))
                    for timeline in (False, True)
                ]
                found = ([], [])
                for block in range(-1, chosen.blocks):
                    for n in (0, 1) if block % 2 else (1, 0):
                        vector = pools.of_size(2).run(WATCHED, payloads[n], time_limit=120)
                        assert vector.ok, vector.describe()
                        if block >= 0:  # the first one warms up
                            found[n].append(max(vector.values))
                    if block >= 0:
                        print(
                            f"block {block + 1} of {chosen.blocks}: {found[0][-1]:.3f} s, {found[1][-1]:.3f} s",
                            file=sys.stderr,
                        )
                off, on = found
                rows.append(
                    (
                        f"{engine}, {schedule}",
                        summary([1000 * s / chosen.steps for s in off], unit=" ms", digits=1),
                        summary([a / b for a, b in zip(on, off, strict=True)]),
                    )
                )
    table(*rows, ("goal", "", "at most 1.3"))


if __name__ == "__main__":
    main()
