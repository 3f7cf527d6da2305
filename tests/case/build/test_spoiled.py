"""Tables with a mistake, made from right ones."""

import pytest

from pipeconform.case.build.spoiled import spoiled
from pipeconform.case.misplans import TABLES, Misplan
from pipeconform.schedule import from_csv, to_csv, verify
from pipeconform.schedule.orders import some_order
from pipeconform.schedule.violation import Rule

WHOLE = from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
PARTS = from_csv("0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1W0,1B1\n")


@pytest.mark.parametrize(
    ("table", "misplan", "expected"),
    [
        (WHOLE, Misplan(how="no forward", number=1), "0F0,0B0,0B1 1F0,1B0,1F1,1B1"),
        (WHOLE, Misplan(how="no backward", stage=1), "0F0,0F1,0B0,0B1 1F0,1F1,1B1"),
        (PARTS, Misplan(how="no backward", stage=1), "0F0,0F1,0I0,0W0,0B1 1F0,1I0,1F1,1B1"),
        (WHOLE, Misplan(how="forward twice", number=1), "0F0,0F1,0F1,0B0,0B1 1F0,1B0,1F1,1B1"),
        (WHOLE, Misplan(how="backward twice"), "0F0,0F1,0B0,0B0,0B1 1F0,1B0,1F1,1B1"),
        (PARTS, Misplan(how="backward twice"), "0F0,0F1,0I0,0W0,0W0,0B1 1F0,1I0,1F1,1W0,1B1"),
        (WHOLE, Misplan(how="backward first"), "0B0,0F0,0F1,0B1 1F0,1B0,1F1,1B1"),
        (PARTS, Misplan(how="backward first"), "0I0,0F0,0F1,0W0,0B1 1F0,1I0,1F1,1W0,1B1"),
        (WHOLE, Misplan(how="no computation", stage=1), "0F0,0F1,0B0,0B1 0X0,1B0,1F1,1B1"),
        (WHOLE, Misplan(how="other microbatch"), "0F0,0F2,0B0,0B2 1F0,1B0,1F2,1B2"),
        (WHOLE, Misplan(how="circle"), "0F0,0B0,0F1,0B1 1F0,1F1,1B0,1B1"),
        (PARTS, Misplan(how="circle"), "0F0,0I0,0F1,0W0,0B1 1F0,1F1,1I0,1W0,1B1"),
        (WHOLE, Misplan(how="no line"), "0F0,0F1,0B0,0B1"),
        (WHOLE, Misplan(how="lines exchanged"), "1F0,1B0,1F1,1B1 0F0,0F1,0B0,0B1"),
    ],
    ids=repr,
)
def test_a_table_gets_the_mistake_and_no_other(table, misplan, expected):
    assert to_csv(spoiled(table, misplan)).split("\r\n") == [*expected.split(" "), ""]


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("placement", [(0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2)], ids=repr)
@pytest.mark.parametrize("how", sorted({*TABLES} - {"no computation", "no line"}))
def test_no_order_with_a_mistake_can_be_carried_out(how, placement, splits):
    for seed in range(8):
        table = some_order(placement, num_microbatches=3, seed=seed, splits=splits, in_turn=True)
        wrong = from_csv(
            to_csv(spoiled(table, Misplan(how=how))), placement=table.placement, num_microbatches=3
        )

        assert not verify(table)
        assert verify(wrong)


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("placement", [(0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 2)], ids=repr)
def test_in_a_circle_nothing_but_the_waiting_is_wrong(placement, splits):
    for seed in range(64):
        table = some_order(placement, num_microbatches=3, seed=seed, splits=splits, in_turn=True)
        text = to_csv(spoiled(table, Misplan(how="circle")))
        found = verify(from_csv(text, placement=table.placement, num_microbatches=3))

        assert {one.rule for one in found} == {Rule.DEADLOCK}
