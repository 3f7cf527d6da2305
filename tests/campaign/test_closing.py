"""A rank that learns late that another one has raised does not wait forever; one that never learns it does (ERR-10)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

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
STEP = Train(batch_size=2, num_microbatches=2)
RAISES = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(structs.replace(STEP, mistake=Mistake(where="forward", how="raise", stage=1)),),
)
SCARCE = structs.replace(
    RAISES, program=(structs.replace(STEP, mistake=Mistake(where="batch", how="scarce")),)
)


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=(*PRELOAD, "pipeconform.reference_impl.adapter")) as pools:
        yield pools


def runner(pools, name):
    full = resolve(f"{FILE}:{name}")
    return runner_of(describe(pools, full), implementation=full, pools=pools)


def judged(pools, name, *rows, case=RAISES):
    """What replay says of a case that hung before."""
    return judge_again(case, [requirement(row) for row in rows], runner(pools, name), hung=True)


def test_a_peer_that_a_closing_connection_wakes_up_does_not_hang(pools):
    assert judged(pools, "ClosesLate", "ERR-10")["ERR-10"] == ()


def test_a_peer_that_nothing_wakes_up_hangs(pools):
    (outcome,) = judged(pools, "NeverCloses", "ERR-10")["ERR-10"]

    assert outcome.status == "hung"
    assert "rank 0 waits forever" in outcome.finding.message


@pytest.mark.parametrize(("settled", "expected"), [(3.0, []), (0.0, ["others left waiting"])])
def test_who_waits_in_the_harness_proves_no_hang_before_all_is_settled(pools, monkeypatch, settled, expected):
    """For ERR-15, a rank that has raised waits there until the others have."""
    monkeypatch.setattr(questions, "SETTLED", settled)
    one = runner(pools, "TellsLate")
    execution = one.execute(SCARCE, [requirement("ERR-15")], hung=True)
    found = one.judged(requirement("ERR-10"), SCARCE, execution).outcomes

    assert [one.finding.kind for one in found if one.status == "hung"] == expected
    assert all("and rank 1 raised: " in one.finding.message for one in found if one.status == "hung")


def test_connections_that_are_kept_for_one_requirement_do_not_accuse_by_another(pools):
    """torch's peers are woken by closing connections, which ERR-10 allows, and ERR-14 does not let happen."""
    found = judged(pools, "Torch", "ERR-10", "ERR-14", "ERR-11")

    assert found["ERR-10"] == ()
    assert [one.finding.kind for one in found["ERR-14"]] == ["others left waiting"]
