"""The same case with something observed and without it, for several engines and schedules."""

from __future__ import annotations

import sys

from measure import summary, table

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


def compare(chosen, task, payload):
    """Run `task` of every engine and schedule with ``payload(engine, case, observed)``; print the ratios."""
    rows = [(f"p = 2, m = 8, {chosen.blocks} blocks", "without", "with / without")]
    with Pools(preload=PRELOAD) as pools:
        for engine, schedules in ENGINES.items():
            for schedule in schedules:
                payloads = [payload(engine, case_of(schedule), observed) for observed in (False, True)]
                found = ([], [])
                for block in range(-1, chosen.blocks):
                    for n in (0, 1) if block % 2 else (1, 0):
                        vector = pools.of_size(2).run(task, payloads[n], time_limit=120)
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
