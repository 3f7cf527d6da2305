"""ERR-10: who is woken by a connection that closes a moment later does not wait forever; who is not woken does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeconform.campaign.again import judge_again
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.case.mistakes import Mistake
from pipeconform.execute.implementation import resolve
from pipeconform.ranks import questions
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

FILE = Path(__file__).with_name("closing_engines.py")
CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(
        Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="forward", how="raise", stage=1)),
    ),
)


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=PRELOAD) as pools:
        yield pools


def judged(pools, name):
    full = resolve(f"{FILE}:{name}")
    runner = runner_of(describe(pools, full), implementation=full, pools=pools)
    return judge_again(CASE, (requirement("ERR-10"),), runner, hung=True)["ERR-10"]


def test_a_peer_that_a_closing_connection_wakes_up_does_not_hang(pools):
    assert judged(pools, "ClosesLate") == ()


@pytest.mark.parametrize(("settled", "expected"), [(3.0, []), (0.0, ["hung"])])
def test_it_would_be_called_a_hang_if_waits_in_the_harness_did_not_settle(
    pools, monkeypatch, settled, expected
):
    monkeypatch.setattr(questions, "SETTLED", settled)

    assert [one.status for one in judged(pools, "ClosesLater")] == expected


def test_a_peer_that_nothing_wakes_up_hangs(pools):
    (outcome,) = judged(pools, "NeverCloses")

    assert outcome.status == "hung"
    assert "rank 0 waits forever" in outcome.finding.message
