"""Lowering adds exactly the needed transfers and never a deadlock."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeconform.errors import BadTableError, UsageError
from pipeconform.schedule import Action, Costs, Kind, Table, families, generate, lower, simulate, verify
from pipeconform.schedule.families import Size

SMALL = settings(max_examples=40, deadline=None, database=None, derandomize=True)
TRAINING = [item for item in families() if not item.forward_only and item.placement != "bidirectional"]


def _blocking_receives_run(table):
    """Whether the table runs if receives block too: every transfer is a meeting of two ranks."""
    programs = [[leaf for action in actions for leaf in action.leaves] for actions in table]
    position = [0] * table.num_ranks
    opposite = {Kind.SEND_F: (Kind.RECV_F, 1), Kind.SEND_B: (Kind.RECV_B, -1)}
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while position[rank] < len(program) and program[position[rank]].kind <= Kind.W:
                position[rank] += 1
                moved = True
            if position[rank] == len(program) or program[position[rank]].kind not in opposite:
                continue
            send = program[position[rank]]
            kind, step = opposite[send.kind]
            peer = table.placement[send.stage + step]
            meeting = Action(send.stage + step, kind, send.microbatch)
            if position[peer] < len(programs[peer]) and programs[peer][position[peer]] == meeting:
                position[rank] += 1
                position[peer] += 1
                moved = True
    return all(position[rank] == len(program) for rank, program in enumerate(programs))


@SMALL
@given(
    item=st.sampled_from(TRAINING),
    p=st.integers(1, 4),
    m=st.integers(1, 8),
    receives=st.sampled_from(["early", "late"]),
    costs=st.tuples(*[st.sampled_from([0.1, 0.3, 1.0, 2.5, 7.0])] * 3),
)
def test_lowered_tables_run_under_every_delivery(second_opinion, item, p, m, receives, costs):
    """SCH-5, for any nominal costs; even with receives that block."""
    v = 2 if item.placement == "v" else 1
    if item.refusal(Size(p, v, m)):
        return
    table = generate(item.name, num_ranks=p, stages_per_rank=v, num_microbatches=m)
    f, i, w = costs

    lowered = lower(table, receives=receives, costs=Costs(forward=f, input_grad=i, weight_grad=w))

    assert verify(lowered, communication=True) == ()
    assert all(second_opinion(lowered))
    assert _blocking_receives_run(lowered)


@pytest.mark.parametrize("item", families(), ids=lambda item: item.name)
def test_early_receives_cost_no_time(item):
    """Transfers run beside computations: with the costs at hand always, with nominal ones while they are short."""
    judged = 0
    for p, v, m in itertools.product((2, 3, 4), (1, 2), (1, 4, 12)):
        if item.refusal(Size(p, v, m)):
            continue
        judged += 1
        table = item.generate(num_ranks=p, stages_per_rank=v, num_microbatches=m)
        nominal = lower(table)
        for costs in (
            Costs(latency=0.125),
            Costs(latency=0.5),
            Costs(latency=2.0),
            Costs(forward=2.0, latency=7.0),
        ):
            least = simulate(table, costs=costs).makespan
            assert simulate(lower(table, costs=costs), costs=costs).makespan == least, (p, v, m, costs)
            if costs.latency <= 0.5:
                assert simulate(nominal, costs=costs).makespan == least, (p, v, m, costs)

    assert judged >= 1


def test_early_receives_stand_before_the_computation_that_runs_meanwhile():
    """Rank 1 computes 1B0 (2 units) while rank 0 sends microbatch 1 in its midst."""
    ranks = [
        [Action(0, Kind.F, 0), Action(0, Kind.F, 1)],
        [Action(1, Kind.F, 0), Action(1, Kind.B, 0), Action(1, Kind.F, 1)],
    ]
    table = Table.build(ranks, placement=(0, 1), num_microbatches=2)
    slow = Costs(forward=(1.5, 1.0), input_grad=1.0, weight_grad=1.0)
    early, late = (lower(table, receives=when, costs=slow)[1] for when in ("early", "late"))

    assert " ".join(map(str, early)) == "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1"
    assert " ".join(map(str, late)) == "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1"


def test_neighbours_on_one_rank_need_no_transfer():
    table = lower(generate("zb_v", num_ranks=2, stages_per_rank=2, num_microbatches=2))

    assert not [a for a in table[1] if a in {Action(1, Kind.SEND_F, 0), Action(2, Kind.RECV_F, 0)}]


def test_chains_do_not_send_to_one_another():
    table = lower(generate("chimera", num_ranks=2, stages_per_rank=2, num_microbatches=2))

    assert not [a for actions in table for a in actions if a.kind is Kind.SEND_F and a.stage in {1, 3}]


def test_a_single_rank_needs_none():
    assert not lower(
        generate("looped_bfs", num_ranks=1, stages_per_rank=3, num_microbatches=2)
    ).has_communication


def test_sharding_actions_stay_where_they_are():
    ranks = [
        [Action(0, Kind.UNSHARD), Action(0, Kind.F, 0), Action(0, Kind.B, 0), Action(0, Kind.REDUCE_GRAD)],
        [Action(1, Kind.F, 0), Action(1, Kind.B, 0), Action(1, Kind.REDUCE_GRAD)],
    ]

    lowered = lower(Table.build(ranks, placement=(0, 1), num_microbatches=1))

    assert " ".join(map(str, lowered[0])) == "0UNSHARD 0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD"
    assert " ".join(map(str, lowered[1])) == "1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD"


def test_what_cannot_be_lowered_is_refused():
    table = generate("gpipe", num_ranks=2, num_microbatches=1)
    circle = Table.build(
        [[Action(0, Kind.B, 0), Action(0, Kind.F, 0)], [Action(1, Kind.F, 0), Action(1, Kind.B, 0)]],
        placement=(0, 1),
        num_microbatches=1,
    )

    with pytest.raises(BadTableError, match="already"):
        lower(lower(table))
    with pytest.raises(BadTableError, match="rank 0 at 0B0, rank 1 at 1F0"):
        lower(circle)
    with pytest.raises(UsageError, match="above zero"):
        lower(table, costs=Costs(forward=0.0))


def test_what_takes_no_time_comes_after_the_transfers_of_its_moment():
    """What is sent need not wait for parameters that are freed and gathered in the meantime."""
    ranks = [
        [Action(0, Kind.F, 0), Action(0, Kind.UNSHARD), Action(0, Kind.RESHARD)],
        [Action(1, Kind.F, 0)],
    ]
    table = Table.build(ranks, placement=(0, 1), num_microbatches=1)

    for receives in ("early", "late"):
        assert " ".join(map(str, lower(table, receives=receives)[0])) == "0F0 0SEND_F0 0UNSHARD 0RESHARD"
