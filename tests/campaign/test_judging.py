"""What a refusal must be where a case must be refused: every rank, of its own accord, in words."""

from __future__ import annotations

import pytest
from msgspec import structs

from pipeconform.adapter import Description
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge
from pipeconform.case.case import World
from pipeconform.observe.observation import Observation
from pipeconform.ranks.pools import Pools
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, Verdict, VerdictVector
from pipeconform.spec import requirement
from tests.case.examples import EVERYTHING, small_case

WORLD = World(size=2, pipeline_ranks=(0, 1), placement="v")
CLEAR = Raised("ValueError", "LoopedBFS places its stages on ranks (0, 1, 0, 1), not (0, 1, 1, 0)")
UNCLEAR = Raised("RuntimeError", "can't allocate memory")
ECHO = Raised("RuntimeError", "Connection closed by peer [127.0.0.1]:1; rank 0 owns no stage")


def _judged(*verdicts: Verdict, shown: tuple[Observation, ...] = ()) -> list[str]:
    model = small_case().model
    four = structs.replace(model, stages=model.stages * 2)
    case = small_case(schedule="V", stages_per_rank=2, world=WORLD, model=four)
    execution = Execution(case=case, verdicts=VerdictVector(verdicts), shown=shown)
    executor = Executor(
        implementation="nobody's",
        description=Description(name="it", version="0", capabilities=EVERYTHING),
        pools=Pools(),
    )
    outcomes = judge(requirement("SCH-7"), execution, executor)
    return [f"{outcome.status}: {outcome.finding.kind}" for outcome in outcomes]


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        ((CLEAR, CLEAR), []),
        ((CLEAR, UNCLEAR), ["failed: unclear refusal"]),
        ((CLEAR, ECHO), ["error: raised ValueError: LoopedBFS places its stages on ranks (#, #, #, #), not"]),
        ((CLEAR, Stuck(2.0, "no rank used CPU time for 2 s")), ["error: raised ValueError"]),
        ((Died(signal="SIGABRT"), CLEAR), ["crashed: died: SIGABRT"]),
    ],
)
def test_every_rank_refuses_in_words_of_its_own(verdicts, found):
    outcomes = _judged(*verdicts)

    assert len(outcomes) == len(found)
    assert all(mine.startswith(right) for mine, right in zip(outcomes, found, strict=True))


def test_a_plan_that_is_not_supported_is_refused():
    shown = tuple(Observation(rank=r, pipeline_rank=r, unsupported="no V") for r in range(2))

    assert _judged(Returned(b""), Returned(b""), shown=shown) == []
