"""Three situations as tests of two ranks, in three harnesses; see `three_situations.py`.

    SITUATION_HARNESS=spawn|continuous|pool SITUATION=killed|failure|hang python benchmarks/situations.py

``killed``: rank 1 is killed by SIGKILL while rank 0 returns. ``failure``: rank 1 fails in the first of three
tests. ``hang``: both ranks receive from each other. Prints what the harness reports.
"""

from __future__ import annotations

import os
import signal
import sys
import unittest

import torch
import torch.distributed as dist

RANKS = 2
HARNESS = "SITUATION_HARNESS"


def kill_rank_1(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def fail_on_rank_1(rank):
    assert rank == 0, "rank 1 finds a wrong value"


def add_up(_rank):
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == RANKS


def wait_for_each_other(rank):
    dist.recv(torch.zeros(1), src=1 - rank)


SITUATIONS = {
    "killed": (kill_rank_1,),
    "failure": (fail_on_rank_1, add_up, add_up),
    "hang": (wait_for_each_other,),
}


def spawned_case():
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class Spawned(MultiProcessTestCase):
        @property
        def world_size(self):
            return RANKS

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def run_body(self, body):
            store = dist.FileStore(self.file_name, RANKS)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=RANKS)
            body(self.rank)

    return Spawned


def continuous_case():
    from torch.testing._internal.common_distributed import MultiProcContinuousTest

    class Continuous(MultiProcContinuousTest):
        world_size = RANKS
        device_type = "cpu"

        @classmethod
        def backend_str(cls):
            return "gloo"

        def run_body(self, body):
            body(self.rank)

    return Continuous


def filled(case, bodies):
    for index, body in enumerate(bodies):

        def test(self, body=body):
            self.run_body(body)

        setattr(case, f"test_{index}", test)
    case.__qualname__, case.__module__ = case.__name__, __name__
    return case


def with_ours(bodies):
    from pipeconform import run_on_ranks

    failed = 0
    for index, body in enumerate(bodies):
        vector = run_on_ranks(lambda body=body: body(dist.get_rank()), ranks=RANKS, record=True)
        failed += not vector.ok
        print(f"test_{index}: {'ok' if vector.ok else vector.explain()}\n")
    print(f"Ran {len(bodies)} tests")
    print(f"FAILED (failures={failed})" if failed else "OK")
    return failed


# spawned processes import this module anew and find the class by its name
if os.environ.get(HARNESS) in ("spawn", "continuous"):
    bodies_ = SITUATIONS[os.environ["SITUATION"]]
    if os.environ[HARNESS] == "spawn":
        Spawned = filled(spawned_case(), bodies_)
    else:
        Continuous = filled(continuous_case(), bodies_)


if __name__ == "__main__":
    chosen = SITUATIONS[os.environ["SITUATION"]]
    if os.environ[HARNESS] == "pool":
        sys.exit(1 if with_ours(chosen) else 0)
    case_ = Spawned if os.environ[HARNESS] == "spawn" else Continuous
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case_)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    sys.exit(0 if result.wasSuccessful() else 1)
