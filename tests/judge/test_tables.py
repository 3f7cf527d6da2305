"""Judgements of declared tables by themselves: every family's own table passes, three wrong tables do not."""

import itertools

import pytest

from pipeconform.adapter import Placement
from pipeconform.errors import UsageError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.schedule import families, generate, to_csv
from tests.judge.executions import evidence

bubble_is_bounded = JUDGEMENTS["SCH-4"].judge
nothing_waits_in_a_circle = JUDGEMENTS["SCH-5"].judge

CHAINS = [item for item in families() if item.placement != "bidirectional" and not item.forward_only]
SIZES = list(itertools.product((1, 2, 3), (1, 2), (1, 2, 3, 6)))


def _declared(table, *, family="one_f_one_b", p=2, v=1, m=3, placement=Placement.LOOP):
    return evidence(*[""] * p, m=m, v=v, family=family, placement=placement, table=table)


@pytest.mark.parametrize("item", CHAINS, ids=lambda item: item.name)
def test_every_familys_own_table_meets_both(item):
    judged = 0
    for p, v, m in SIZES:
        try:
            table = generate(item.name, num_ranks=p, stages_per_rank=v, num_microbatches=m)
        except UsageError:
            continue
        judged += 1
        placement = Placement.V if item.placement == "v" else Placement.LOOP
        made = _declared(to_csv(table), family=item.name, p=p, v=v, m=m, placement=placement)
        assert [*bubble_is_bounded(made), *nothing_waits_in_a_circle(made)] == []

    assert judged


def test_one_microbatch_after_the_other_idles_too_long():
    table = "\n".join(",".join(f"{s}F{k},{s}B{k}" for k in range(3)) for s in range(2))

    (finding,) = bubble_is_bounded(_declared(table))

    assert finding.kind == "bubble too large"
    assert "one_f_one_b promises (p−1)·(F + B) = 3" in finding.message
    assert list(nothing_waits_in_a_circle(_declared(table))) == []


def test_opposite_orders_wait_in_a_circle():
    table = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0"
    made = _declared(table, m=2)

    (finding,) = nothing_waits_in_a_circle(made)
    assert finding.kind == "declared table: SCH-5 deadlock"
    assert "rank 0 cannot start 0B0" in finding.message
    assert [f.kind for f in bubble_is_bounded(made)] == ["declared table cannot be run"]


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (None, "no declared table"),
        ("0X0", "declared table unreadable"),
        ("0F0,0B0\n1F0", "declared table is incomplete"),
        ("0F0,0B0\n1F1,1B0", "declared table is incomplete"),
    ],
)
def test_what_is_no_table_of_the_step_cannot_be_judged(table, kind):
    made = _declared(table, m=1)

    assert [f.kind for f in bubble_is_bounded(made)] == [kind]
    assert [f.kind for f in nothing_waits_in_a_circle(made)] == [kind]
