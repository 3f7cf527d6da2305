"""Replicas as data: what cannot be, whose data a batch is, and what is drawn."""

import dataclasses

import pytest
import torch
from msgspec import structs

from pipeconform.adapter import DataParallelClaim
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.build.data import make_batch
from pipeconform.case.case import World, decode_case, encode_case
from pipeconform.case.draw.claimed import is_claimed, reachable
from pipeconform.case.draw.registry import of_form
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.replicas import Replicas
from pipeconform.errors import BadCaseError
from pipeconform.report.case_text import describe_case
from tests.case.examples import EVERYTHING, small_case

OTHERS = ((2, 3),)


def world(**changes):
    return World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(**{"others": OTHERS, **changes}))


def test_a_case_without_replicas_says_nothing_of_them_and_one_with_them_survives_the_file():
    case = small_case(world=world(wrapper="fully_shard"))

    assert b"replicas" not in encode_case(small_case())
    assert decode_case(encode_case(case)) == case
    assert case.world.pipelines == ((0, 1), (2, 3))
    assert [case.world.replica_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert "replicas  2, the other on ranks 2, 3; fully_shard" in describe_case(case)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"others": ((2,),)}, "as many ranks each"),
        ({"others": ((1, 2),)}, "distinct ranks"),
        ({"others": ((3, 4),)}, "below world.size 4"),
        ({"others": ((3, 2),)}, "ascending"),
        ({"wrapper": "fully_shard", "hook": True}, "options of 'ddp'"),
        ({"nested": True}, "options of 'fully_shard'"),
        ({"mixed_precision": True}, "options of 'fully_shard'"),
        ({"wrapper": "fully_shard", "mixed_precision": True}, "needs model.dtype 'float32' and no autocast"),
        ({"static_graph": True, "find_unused": True}, "both static_graph"),
    ],
)
def test_replicas_that_cannot_be_are_refused(changes, words):
    with pytest.raises(BadCaseError, match=words):
        small_case(world=world(**changes))


def test_at_every_place_ranks_ascend_from_replica_to_replica():
    with pytest.raises(BadCaseError, match="ascend from replica to replica"):
        small_case(world=World(size=4, pipeline_ranks=(2, 3), replicas=Replicas(others=((0, 1),))))


def test_every_replica_has_data_of_its_own_and_the_first_that_of_the_case_without_replicas():
    case = small_case(world=world())
    first, second = (make_batch(case, 0, replica=d) for d in range(2))
    alone = make_batch(small_case(), 0)

    assert torch.equal(first.args[0], alone.args[0])
    assert first.args[0].shape == second.args[0].shape
    assert not torch.equal(first.args[0], second.args[0])
    assert not torch.equal(first.target, second.target)


@pytest.mark.parametrize("focus", sorted(of_form("replicas")))
def test_drawn_cases_are_about_their_focus_and_fit_into_the_world(focus):
    limits = Limits(capabilities=EVERYTHING, max_ranks=4)
    about = 0
    for claim in EVERYTHING.schedules:
        if not claim.trains:
            assert not is_claimed(focus, claim, EVERYTHING)
            continue
        cases = drawn(Corpus(limits=limits, schedule=claim, focus=focus, seed=0, size=12))
        for case in cases:
            assert case.world.replicas is not None
            assert case.world.size == case.num_ranks * len(case.world.pipelines) <= 4
            assert traits(case) <= of_form("replicas")
            about += focus in traits(case)
    assert about >= 12


def test_contiguous_and_interleaved_replicas_are_both_drawn():
    limits = Limits(capabilities=EVERYTHING, max_ranks=4)
    claim = EVERYTHING.schedules[0]
    cases = drawn(Corpus(limits=limits, schedule=claim, focus=Focus.REPLICAS, seed=0, size=24))
    found = {case.world.pipelines for case in cases}

    assert {((0, 1), (2, 3)), ((0, 2), (1, 3))} <= found


def test_nothing_is_drawn_that_is_not_claimed_or_does_not_fit():
    claim = EVERYTHING.schedules[0]
    none = dataclasses.replace(EVERYTHING, data_parallel=None)
    ddp = dataclasses.replace(EVERYTHING, data_parallel=DataParallelClaim())

    assert not any(is_claimed(focus, claim, none) for focus in of_form("replicas"))
    assert is_claimed(Focus.REPLICAS, claim, ddp)
    assert not is_claimed(Focus.SHARDED, claim, ddp)
    assert not is_claimed(Focus.REPLICA_OPTIONS, claim, ddp)
    assert not reachable(Limits(capabilities=EVERYTHING, max_ranks=1), claim, Focus.REPLICAS)


def test_a_delay_is_of_a_replica_that_there_is():
    case = small_case(world=world())
    late = [one.world.perturbations for one in _delayed()]

    assert all(len(found) == 1 for found in late)
    with pytest.raises(BadCaseError, match="replica 2 is outside 0…1"):
        structs.replace(
            case,
            world=structs.replace(
                case.world, perturbations=(structs.replace(late[0][0], replica=2, **_first(late[0][0])),)
            ),
        )


def _first(one):
    return {"rank": 0} if hasattr(one, "rank") else {"stage": 0}


def _delayed():
    limits = Limits(capabilities=EVERYTHING, max_ranks=4)
    return drawn(
        Corpus(limits=limits, schedule=EVERYTHING.schedules[0], focus=Focus.REPLICA_DELAYS, seed=0, size=6)
    )
