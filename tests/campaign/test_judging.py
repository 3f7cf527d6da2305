"""Where an error on one rank is enough of a refusal, and where every rank must raise one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from pipeconform.adapter import Description, Feature
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge
from pipeconform.case.case import Train, World
from pipeconform.observe.observation import Observation
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, Verdict, VerdictVector
from pipeconform.spec import requirement
from tests.case.examples import EVERYTHING, small_case

OWN = Raised("ValueError", "a batch of 3 cannot be split into 2 microbatches")
ECHO = Raised("RuntimeError", "Connection closed by peer [127.0.0.1]:1")
WAITS = Stuck(2.0, "no rank used CPU time for 2 s")
UNEVEN = small_case(program=(Train(batch_size=3, num_microbatches=2),))
WORLD = World(size=3, pipeline_ranks=(0, 1, 2), placement="loop")
PLACED = Raised("ValueError", "LoopedBFS places its stages on ranks (0, 1, 0, 1), not (0, 1, 1, 0)")
UNCLEAR = Raised("RuntimeError", "can't allocate memory")


def _judged(identifier, case, *verdicts: Verdict, shown: tuple[Observation, ...] = ()) -> list[str]:
    execution = Execution(case=case, verdicts=VerdictVector(verdicts), shown=shown)
    claims = replace(EVERYTHING, features=EVERYTHING.features - {Feature.UNEVEN_BATCHES})
    executor = Executor(
        implementation="nobody's",
        description=Description(name="it", version="0", capabilities=claims),
        pools=Pools(),
    )
    outcomes = judge(requirement(identifier), execution, executor)
    return [f"{outcome.status}: {outcome.finding.kind}" for outcome in outcomes]


@pytest.mark.parametrize(
    ("verdicts", "refused_alike"),
    [
        ((OWN, OWN), True),
        ((OWN, ECHO), False),
        ((OWN, WAITS), False),
        ((ECHO, OWN), False),
    ],
)
def test_an_uneven_batch_is_refused_where_that_is_noticed_and_should_be_on_every_rank(
    verdicts, refused_alike
):
    """FWD-2, FWD-24"""
    assert _judged("FWD-2", UNEVEN, *verdicts) == []
    assert _judged("FWD-24", UNEVEN, *verdicts) == (
        [] if refused_alike else ["error: refused on some ranks only"]
    )


def test_outputs_that_come_back_are_no_refusal():
    """FWD-2: the last stage is on rank 1."""
    (found,) = _judged("FWD-2", UNEVEN, OWN, Returned(b""))

    assert found.startswith("error: raised ValueError")
    assert _judged("FWD-2", UNEVEN, Returned(b""), OWN) == []


def test_nobody_refuses_where_all_lost_a_connection_or_a_process_died():
    """FWD-2"""
    assert [one.partition(":")[0] for one in _judged("FWD-2", UNEVEN, ECHO, ECHO)] == ["error"]
    assert _judged("FWD-2", UNEVEN, Died(signal="SIGABRT"), OWN) == ["crashed: died: SIGABRT"]


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ((PLACED, PLACED, PLACED), []),
        ((PLACED, WAITS, PLACED), []),
        ((PLACED, Died(signal="SIGABRT"), PLACED), []),
        ((PLACED, Returned(b""), PLACED), []),
        ((PLACED, PLACED, UNCLEAR), ["failed: unclear refusal"]),
        ((PLACED, PLACED, ECHO), ["error: refused on some ranks only"]),
        ((PLACED, PLACED, WAITS), ["hung: hang"]),
        ((PLACED, PLACED, Returned(b"")), ["failed: another placement accepted"]),
        ((Died(signal="SIGABRT"), WAITS, PLACED), ["crashed: died: SIGABRT"]),
        ((WAITS, WAITS, WAITS), ["hung: hang"]),
    ],
)
def test_every_rank_that_can_know_refuses_misplaced_stages(verdicts, found):
    """ERR-16: a loop and a V give the middle one of three ranks the same two stages."""
    model = small_case().model
    six = structs.replace(model, stages=model.stages * 3)
    case = small_case(schedule="V", stages_per_rank=2, world=WORLD, model=six)

    assert _judged("ERR-16", case, *verdicts) == found


def test_a_placement_that_is_not_supported_is_refused():
    """ERR-16"""
    model = small_case().model
    case = small_case(
        schedule="V",
        stages_per_rank=2,
        world=World(size=2, pipeline_ranks=(0, 1), placement="loop"),
        model=structs.replace(model, stages=model.stages * 2),
    )
    shown = tuple(Observation(rank=r, pipeline_rank=r, unsupported="no loop") for r in range(2))

    assert _judged("ERR-16", case, Returned(b""), Returned(b""), shown=shown) == []
