"""The same case with something observed and without it, for several engines and schedules."""

from __future__ import annotations

import sys

from measure import summary, table

from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.ranks.pools import Pools

PRELOAD = ("torch", "torch.distributed", "torch.distributed.pipelining", "step_ranks")
ENGINES = {"reference": ("1F1B", "ZB-H1"), "torch": ("1F1B", "InterleavedZeroBubble")}


SMALL = (8, 4)
"""Width of a layer and rows of a microbatch as the suite draws them."""


def case_of(schedule, size=SMALL):
    width, rows = size
    stage = Stage(blocks=(blocks.Linear(), blocks.Linear(), blocks.Linear()))
    return Case(
        model=Model(width=width, stages=(stage, stage)),
        schedule=schedule,
        world=World(size=2, pipeline_ranks=(0, 1)),
        program=(Train(batch_size=8 * rows, num_microbatches=8),),
    )


def compare(chosen, task, payload, *, sizes=(SMALL,)):
    """Run `task` of every engine and schedule with ``payload(engine, case, observed)``; print the ratios.

    `sizes` are widths of a layer, each with the rows of a microbatch.
    """
    rows = [(f"p = 2, m = 8, {chosen.blocks} blocks", "without", "with / without")]
    with Pools(preload=PRELOAD) as pools:
        for size in sizes:
            for engine, schedule in ((e, s) for e, schedules in ENGINES.items() for s in schedules):
                case = case_of(schedule, size)
                payloads = [payload(engine, case, observed) for observed in (False, True)]
                off, on = _blocks(chosen, pools, task, payloads)
                rows.append(
                    (
                        f"{engine}, {schedule}" + ("" if len(sizes) == 1 else f", width {size[0]}"),
                        summary([1000 * s / chosen.steps for s in off], unit=" ms", digits=1),
                        summary([a / b for a, b in zip(on, off, strict=True)]),
                    )
                )
    table(*rows, ("goal", "", "at most 1.3"))


def _blocks(chosen, pools, task, payloads):
    """Seconds per block without and with; the first block of both warms up."""
    found = ([], [])
    for block in range(-1, chosen.blocks):
        for n in (0, 1) if block % 2 else (1, 0):
            vector = pools.of_size(2).run(task, payloads[n], time_limit=120)
            assert vector.ok, vector.describe()
            if block >= 0:
                found[n].append(max(vector.values))
        if block >= 0:
            print(
                f"block {block + 1} of {chosen.blocks}: {found[0][-1]:.3f} s, {found[1][-1]:.3f} s",
                file=sys.stderr,
            )
    return found
