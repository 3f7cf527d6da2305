"""One small check on two ranks, and three harnesses that run it many times; see `against_torch_harness.py`.

    python benchmarks/two_rank_checks.py pool|spawn|continuous COUNT

The check builds a two-stage pipeline of torch's, trains one step under GPipe and compares losses with the
whole model's on the last rank. Prints how many seconds the checks took, start-up of the ranks included.
"""

from __future__ import annotations

import os
import sys
import time
import unittest

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

RANKS, MICROBATCHES, WIDTH = 2, 4, 8
COUNT = "TWO_RANK_CHECKS"


def layer(index, stage):
    torch.manual_seed(RANKS * index + stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())


def squares(output, target):
    return ((output - target) ** 2).mean()


def check(rank, index):
    torch.manual_seed(index)
    x, target = torch.randn(2, 2 * MICROBATCHES, WIDTH).unbind()
    stage = pipelining.PipelineStage(layer(index, rank), rank, RANKS, torch.device("cpu"))
    schedule = pipelining.ScheduleGPipe(stage, MICROBATCHES, loss_fn=squares)
    losses = []
    if rank == 0:
        schedule.step(x)
        return
    schedule.step(target=target, losses=losses)
    model = nn.Sequential(layer(index, 0), layer(index, 1))
    expected = [
        squares(model(a), b) for a, b in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True)
    ]
    assert torch.equal(torch.stack(losses), torch.stack(expected))


def task(context, payload):
    check(context.rank, int(payload))


def with_pool(count):
    from pipeconform.ranks.pools import Pools

    preload = ("torch", "torch.distributed", "torch.distributed.pipelining", "two_rank_checks")
    with Pools(preload=preload) as pools:
        pool = pools.of_size(RANKS)
        for index in range(count):
            vector = pool.run("two_rank_checks:task", str(index).encode(), time_limit=60)
            assert vector.ok, vector.describe()


def spawned_case():
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class Spawned(MultiProcessTestCase):
        @property
        def world_size(self):
            return RANKS

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def run_check(self, index):
            torch.set_num_threads(1)
            dist.init_process_group(
                "gloo", store=dist.FileStore(self.file_name, RANKS), rank=self.rank, world_size=RANKS
            )
            check(self.rank, index)

    return Spawned


def continuous_case():
    from torch.testing._internal.common_distributed import MultiProcContinuousTest

    class Continuous(MultiProcContinuousTest):
        world_size = RANKS
        device_type = "cpu"

        @classmethod
        def backend_str(cls):
            return "gloo"

        def run_check(self, index):
            torch.set_num_threads(1)
            check(self.rank, index)

    return Continuous


def filled(case, count):
    """Give `case` one test per check, as its author would have written them."""
    for index in range(count):

        def test(self, index=index):
            self.run_check(index)

        setattr(case, f"test_{index:03}", test)
    case.__qualname__, case.__module__ = case.__name__, __name__
    return case


# spawned processes import this module anew and find the classes by name; the others must not pay for that
if os.environ.get(COUNT) and (__name__ != "__main__" or sys.argv[1] != "pool"):
    Spawned = filled(spawned_case(), int(os.environ[COUNT]))
    Continuous = filled(continuous_case(), int(os.environ[COUNT]))


def with_torch(case):
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=0).run(suite)
    assert result.wasSuccessful()
    assert not result.skipped, result.skipped


if __name__ == "__main__":
    harness, wanted = sys.argv[1], int(sys.argv[2])
    begun = time.perf_counter()
    if harness == "pool":
        with_pool(wanted)
    else:
        with_torch(Spawned if harness == "spawn" else Continuous)
    print(time.perf_counter() - begun)
