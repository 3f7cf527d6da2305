"""The controller asks idle ranks where they stand: twice for a proof, and not for ever where nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from pipeconform.ranks.questions import Prover
from pipeconform.ranks.standing import SETTLED, Standing, Wait

RANKS = (0, 1)


class _Answers:
    """Answers at once, as `now` says."""

    def __init__(self) -> None:
        self.now: dict[int, Standing] = {}
        self.times = 0

    def ask(self, ranks: Sequence[int]) -> _Answers:
        self.times += 1
        return self

    def answers(self) -> dict[int, Standing]:
        return self.now

    def wait(self) -> dict[int, Standing]:
        return self.now

    @property
    def over(self) -> bool:
        return True


def _circle(moment: float) -> dict[int, Standing]:
    return {
        rank: Standing(
            began=moment,
            ended=moment,
            wait=Wait(words="receive", peers=(1 - rank,), number=0, name="recv_", nth=1),
            since=1.0,
            recorded=True,
            alone=True,
        )
        for rank in RANKS
    }


def _rounds(prover: Prover, *, idle: float, count: int) -> list[dict[int, Standing] | None]:
    return [prover.check(RANKS, idle=idle) for _ in range(count)]


def test_two_rounds_of_equal_standings_prove_a_deadlock() -> None:
    asked = _Answers()
    prover = Prover(asked.ask)
    assert prover.check(RANKS, idle=0.05) is None
    assert asked.times == 0
    assert _rounds(prover, idle=0.1, count=1) == [None]
    asked.now = _circle(2.0)
    assert _rounds(prover, idle=0.1, count=1) == [None]
    asked.now = _circle(3.0)

    assert prover.check(RANKS, idle=0.1) == asked.now
    assert asked.times == 2


@pytest.mark.parametrize("later", [True, False])
def test_who_records_nothing_yet_is_asked_once_more_and_then_left_alone(later: bool) -> None:
    asked = _Answers()
    prover = Prover(asked.ask)
    asked.now = {rank: Standing(began=1.0, ended=1.0) for rank in RANKS}
    _rounds(prover, idle=0.1, count=20)
    assert asked.times == 1
    if later:
        asked.now = _circle(2.0)
    _rounds(prover, idle=0.5, count=2)
    asked.now = _circle(3.0)
    found = next((one for one in (prover.check(RANKS, idle=5.0) for _ in range(20)) if one), None)

    assert asked.times == (3 if later else 2)
    assert (found is not None) == later


def _waits_in_harness(moment: float) -> dict[int, Standing]:
    circle = _circle(moment)
    inside = Standing(
        began=moment, ended=moment, wait=Wait(words="barrier", peers=(1,)), recorded=True, alone=True
    )
    return {**circle, 0: structs.replace(inside, in_harness=True)}


def test_where_ranks_wait_in_the_harness_the_second_round_waits_until_nothing_has_moved() -> None:
    asked = _Answers()
    prover = Prover(asked.ask)
    asked.now = _waits_in_harness(2.0)
    _rounds(prover, idle=0.1, count=2)
    assert asked.times == 1
    _rounds(prover, idle=SETTLED - 0.01, count=10)
    assert asked.times == 1
    asked.now = _waits_in_harness(3.0)
    found = _rounds(prover, idle=SETTLED, count=2)

    assert (asked.times, found) == (2, [None, asked.now])


def test_a_second_round_that_proves_nothing_is_not_repeated_without_end() -> None:
    asked = _Answers()
    prover = Prover(asked.ask)
    for moment in range(100):
        asked.now = _waits_in_harness(float(moment)) if moment % 2 else {0: Standing(), 1: Standing()}
        prover.check(RANKS, idle=1.9)

    assert asked.times < 10
