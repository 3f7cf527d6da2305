"""What is claimed is exactly what there are tables for."""

from __future__ import annotations

import itertools

import pytest
from pipeconform.reference_impl.tables import (
    OFFERS,
    actions_of,
    evaluation_table,
    given_table,
    training_table,
)

from pipeconform.adapter import placement_of
from pipeconform.schedule import Kind, families, family
from pipeconform.schedule.families import Size

GRID = list(itertools.product(range(1, 5), range(1, 5), range(1, 13)))


@pytest.mark.parametrize("name", [name for name, offer in OFFERS.items() if offer.claim.trains])
def test_claims_agree_with_the_families(name: str) -> None:
    offer = OFFERS[name]
    for p, v, m in GRID:
        claimed = offer.claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m)
        assert claimed == (family(offer.family).refusal(Size(p, v, m)) is None), (p, v, m)


@pytest.mark.parametrize("name", [name for name, offer in OFFERS.items() if offer.claim.trains])
def test_tables_place_stages_as_claimed(name: str) -> None:
    claim = OFFERS[name].claim
    for p, v, m in GRID:
        if claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m):
            table = training_table(name, num_ranks=p, stages_per_rank=v, num_microbatches=m)
            placement = placement_of(claim.placement, num_ranks=p, num_stages=p * v)
            assert [{rank} for rank in table.placement] == [set(owners) for owners in placement]


def test_every_family_with_one_chain_and_a_table_of_its_own_is_offered() -> None:
    offered = {offer.family for offer in OFFERS.values()}

    assert offered == {
        found.name for found in families() if found.placement != "bidirectional" and found.name != "bpipe"
    }


@pytest.mark.parametrize("placement", [(0, 1), (0, 1, 2, 0, 1, 2), (0, 1, 1, 0), (1, 0)])
def test_evaluation_runs_every_forward_once_and_nothing_else(placement: tuple[int, ...]) -> None:
    table = evaluation_table(placement, num_ranks=max(placement) + 1, num_microbatches=3)
    computed = [a for rank in table for a in rank if a.kind is Kind.F]

    assert sorted((a.stage, a.microbatch) for a in computed) == [
        (s, k) for s in range(len(placement)) for k in range(3)
    ]
    assert not {a.kind for rank in table for a in rank} & {Kind.B, Kind.I, Kind.W}


@pytest.mark.parametrize(
    ("name", "placement", "m", "words"),
    [
        ("ForwardOnly", (0, 1), 2, "evaluates only"),
        ("GPipe", (0, 1, 0, 1), 2, "GPipe has no table for p=2 ranks, v=2"),
        ("DualPipeV", (0, 1, 1, 0), 3, "m=3 microbatches"),
        ("1F1B", (1, 0), 2, r"1F1B places its stages on ranks \(0, 1\), not \(1, 0\)"),
    ],
)
def test_what_has_no_table_is_refused(name: str, placement: tuple[int, ...], m: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        actions_of(
            name,
            placement=placement,
            num_ranks=2,
            rank=0,
            num_microbatches=m,
            training=True,
            given=None,
            rewritten=False,
        )


OWN = "0F1,0F0,0B0,0B1\r\n1F1,1F0,1B0,1B1\r\n"


def test_a_table_of_the_users_own_is_completed_with_messages_and_evaluation_does_not_follow_it() -> None:
    common = {
        "placement": (0, 1),
        "num_ranks": 2,
        "rank": 0,
        "num_microbatches": 2,
        "given": OWN,
        "rewritten": False,
    }

    trained, evaluated = (actions_of("1F1B", training=training, **common) for training in (True, False))

    assert [str(one) for one in trained if one.kind < Kind.SEND_F] == ["0F1", "0F0", "0B0", "0B1"]
    assert [str(one) for one in trained].count("0SEND_F1") == 1
    assert [str(one) for one in evaluated if one.kind < Kind.SEND_F] == ["0F0", "0F1"]


@pytest.mark.parametrize(
    ("text", "sizes", "words"),
    [
        (OWN, {"num_ranks": 3, "num_microbatches": 2}, "the plan's table is for p=2 ranks, not for p=3"),
        (
            OWN,
            {"num_ranks": 2, "num_microbatches": 3},
            "the plan's table cannot be carried out: .*microbatch 2",
        ),
        ("0F0,0B0\r\n1B0,1F0\r\n", {"num_ranks": 2, "num_microbatches": 1}, "cannot be carried out: .*1B0"),
    ],
)
def test_a_table_of_another_size_or_one_that_cannot_run_is_refused(
    text: str, sizes: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        given_table(text, placement=(0, 1), **sizes)
