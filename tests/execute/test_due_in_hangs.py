"""Who hangs says for which stage and microbatch it waits, where one boundary is crossed between the two ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.case.perturbations import Perturbation
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import Stuck
from tests.facts import tells


@pytest.fixture(scope="module")
def torch_s() -> Iterator[Executor]:
    with Pools(preload=("torch", "torch.distributed", "pipeconform.execute.worker")) as pools:
        yield Executor(
            implementation="torch", description=describe(pools, "torch"), pools=pools, time_limit=60
        )


def hanging(name: str, *, p: int, v: int, stage: int) -> Case:
    """The second step's second forward of a stage raises, and its rank stays connected."""
    train = Train(batch_size=6, num_microbatches=3)
    error = Perturbation(what="error", stage=stage, microbatch=1, run=1)
    return Case(
        model=Model(width=3, stages=(Stage(blocks=(Linear(),)),) * (p * v)),
        schedule=name,
        stages_per_rank=v,
        world=World(size=p, pipeline_ranks=tuple(range(p)), perturbations=(error,)),
        program=(train, train),
    )


def test_a_receive_is_for_the_microbatch_that_is_due(torch_s: Executor) -> None:
    verdicts = torch_s.execute(hanging("GPipe", p=4, v=1, stage=2), observe=("loneliness", "waits")).verdicts
    first, last = verdicts[0], verdicts[3]

    assert isinstance(first, Stuck), verdicts.describe()
    assert isinstance(last, Stuck), verdicts.describe()
    assert (last.waits_for, first.waits_for) == ((2,), (1,))
    assert tells(last.waits, "receive of float64[2, 3]", "from rank 2", "input of stage 3")
    assert tells(last.waits, "input of stage 3", "2nd of step 1", "microbatch 1")
    assert tells(first.waits, "receive of float64[2, 3]", "from rank 1", "gradient", "output of stage 0")
    assert tells(first.waits, "output of stage 0", "1st of step 1", "microbatch 0")
    assert [(place.stage, place.microbatch) for place in verdicts.places[::3]] == [(0, 0), (3, 1)]


def test_between_ranks_with_several_boundaries_nothing_is_guessed(torch_s: Executor) -> None:
    verdicts = torch_s.execute(
        hanging("Interleaved1F1B", p=2, v=2, stage=2), observe=("loneliness", "waits")
    ).verdicts

    assert isinstance(verdicts[1], Stuck), verdicts.describe()
    assert tells(verdicts[1].waits, "receive of float64[2, 3]", "from rank 0")
    assert not any(word in verdicts[1].waits for word in ("due", "stage", "microbatch"))
    assert (verdicts[1].waits_for, verdicts[1].stage, verdicts[1].microbatch) == ((0,), None, None)
