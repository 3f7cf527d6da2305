"""Orders that belong to no named schedule: every one can be run, and the same seed gives the same one."""

import itertools

import pytest

from pipeconform.schedule import Kind, lower, to_csv, verify
from pipeconform.schedule.orders import some_order

PLACEMENTS = ((0,), (0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2, 2, 1, 0))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(("splits", "in_turn"), [*itertools.product((False, True), repeat=2)])
def test_every_order_is_a_whole_step_that_can_be_run(placement, splits, in_turn):
    for m, seed in itertools.product((1, 2, 5), range(8)):
        table = some_order(placement, num_microbatches=m, seed=seed, splits=splits, in_turn=in_turn)

        assert verify(table) == ()
        assert table.placement == placement
        for receives in ("early", "late"):
            assert verify(lower(table, receives=receives)) == ()


def _orders(table, kinds):
    """Per stage, the microbatches of these kinds in the order in which they run."""
    found = {}
    for row in table:
        for one in row:
            if one.kind in kinds:
                found.setdefault(one.stage, []).append(one.microbatch)
    return list(found.values())


def test_in_turn_every_stage_takes_the_microbatches_from_the_first_to_the_last():
    for seed in range(20):
        table = some_order((0, 1, 1, 0), num_microbatches=4, seed=seed, splits=True, in_turn=True)

        for kinds in ({Kind.F}, {Kind.B, Kind.I}):
            assert _orders(table, kinds) == [[0, 1, 2, 3]] * 4


def test_otherwise_the_last_stage_nearly_always_takes_them_in_another_order():
    tables = [some_order((0, 1), num_microbatches=3, seed=s, splits=False, in_turn=False) for s in range(50)]

    assert sum(_orders(table, {Kind.F})[1] == [0, 1, 2] for table in tables) < 5


def test_backwards_are_in_two_parts_only_where_that_is_asked_for():
    whole = some_order((0, 1), num_microbatches=4, seed=0, splits=False, in_turn=True)
    split = some_order((0, 1), num_microbatches=4, seed=0, splits=True, in_turn=True)

    assert "W" not in to_csv(whole)
    assert {"B", "I", "W"} <= set(to_csv(split))


def test_a_seed_gives_the_same_order_on_every_machine():
    assert to_csv(some_order((0, 1), num_microbatches=2, seed=7, splits=True, in_turn=False)).split() == [
        "0F1,0F0,0I1,0W1,0I0,0W0",
        "1F1,1I1,1W1,1F0,1B0",
    ]


def test_seeds_give_different_orders():
    tables = {
        to_csv(some_order((0, 1), num_microbatches=3, seed=s, splits=True, in_turn=True)) for s in range(50)
    }

    assert len(tables) > 40
