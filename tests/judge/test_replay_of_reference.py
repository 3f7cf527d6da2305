"""What the reference sends and receives gets through in order, whatever the schedule and however long the messages."""

from __future__ import annotations

import pytest

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.judge.traffic.messages import exchange
from pipeconform.judge.traffic.replay import circle
from pipeconform.ranks.pools import Pools

REFERENCE = "pipeconform.reference_impl.adapter:ReferenceAdapter"
RUNS = [("1F1B", 2, 1, 4), ("LoopedBFS", 2, 2, 4), ("Interleaved1F1B", 3, 2, 6), ("ZBVZeroBubble", 2, 2, 4)]


@pytest.fixture(scope="module")
def executor():
    preload = ("torch", "torch.distributed", "pipeconform.execute.worker", "pipeconform.oracle.full_model")
    with Pools(preload=preload) as pools:
        yield Executor(implementation=REFERENCE, description=describe(pools, REFERENCE), pools=pools)


@pytest.mark.parametrize(("name", "p", "v", "m"), RUNS)
def test_the_reference_gets_through_in_order(executor, name, p, v, m):
    train = Train(batch_size=2 * m, num_microbatches=m)
    case = Case(
        model=Model(width=4, stages=(Stage(blocks=(Linear(),)),) * (p * v)),
        schedule=name,
        stages_per_rank=v,
        world=World(size=p, pipeline_ranks=tuple(range(p))),
        program=(train, Zero(), train),
    )
    execution = executor.execute(case, observe=("traffic",))
    assert execution.outcome() is None

    found = exchange({one.rank: one.traffic for one in execution.shown})
    assert found.messages
    assert not found.unreceived
    assert circle(found) is None
