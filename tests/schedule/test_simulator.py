"""The simulator's times, bubbles, memory and critical path."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeconform.errors import BadTableError, UsageError
from pipeconform.schedule import Action, Costs, Kind, Table, families, generate, lower, simulate
from pipeconform.schedule.families import Size
from tests.schedule.in_words import table as _table

ONE = ("0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0")


def test_times_of_one_microbatch_through_two_stages():
    simulation = simulate(_table(*ONE))

    assert simulation.makespan == 6
    assert simulation.start.tolist() == [0, 1, 1, 4, 0, 1, 2, 4]
    assert simulation.busy.tolist() == [3, 3]
    assert simulation.span_bubble.tolist() == [3, 0]
    assert simulation.makespan_bubble.tolist() == [3, 3]
    assert simulation.busy_fraction == 0.5


@pytest.mark.parametrize("lowered", [True, False])
def test_transfers_take_latency_and_volume(lowered):
    table = _table(*ONE) if lowered else _table("0F0 0B0", "1F0 1B0")

    simulation = simulate(table, costs=Costs(latency=0.5, message_bytes=100.0, bandwidth=50.0))

    assert simulation.makespan == 6 + 2 * (0.5 + 2)


def test_sends_can_occupy_their_rank():
    table = _table("0F0 0SEND_F0 0F1 0SEND_F1", "1RECV_F0 1RECV_F1 1F0 1F1", m=2)
    costs = {"message_bytes": 1.0, "bandwidth": 1.0}

    beside, instead = (simulate(table, costs=Costs(**costs, overlap=flag)) for flag in (True, False))

    assert (beside.makespan, instead.makespan) == (4, 5)
    assert beside.busy.tolist() == instead.busy.tolist() == [2, 2]


def test_a_transfer_waits_for_its_receive():
    late = _table("0F0 0SEND_F0", "1F1 1RECV_F0 1F0", m=2)

    assert simulate(late, costs=Costs(forward=(1.0, 5.0), latency=2.0)).makespan == 5 + 2 + 5


def test_stages_can_cost_differently():
    costs = Costs(forward=(1.0, 2.0), input_grad=(3.0, 4.0), weight_grad=(5.0, 6.0))

    assert simulate(_table("0F0 0B0", "1F0 1B0"), costs=costs).makespan == 1 + 2 + 10 + 8


@pytest.mark.parametrize(("factor", "makespan"), [(1.0, 3.0), (0.5, 1.5)])
def test_a_pair_takes_the_sum_of_its_parts_times_the_factor(factor, makespan):
    table = Table.build([[Action.parse("(0F1;1B0)OVERLAP_F_B")]], placement=(0, 0), num_microbatches=2)

    simulation = simulate(table, costs=Costs(pair_factor=factor))

    assert simulation.makespan == makespan
    assert simulation.busy.tolist() == [makespan]
    assert simulation.start.tolist() == [0, 0]


def test_a_pair_starts_when_both_parts_can_and_ends_as_one():
    table = _table(
        "0F0 0F1 0B0 0B1",
        "1F0 (1F1;1B0)OVERLAP_F_B 1B1",
        m=2,
    )

    simulation = simulate(table, costs=Costs(forward=(3.0, 1.0)))

    assert simulation.start[4:].tolist() == [3, 6, 6, 9]
    assert simulation.end[4:].tolist() == [4, 9, 9, 11]
    assert simulation.start[2] == 9


@pytest.mark.parametrize("lowered", [False, True])
def test_what_uses_half_of_a_pair_waits_for_the_whole(lowered):
    table = _table("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1F1 1B1", m=2)

    simulation = simulate(lower(table) if lowered else table)

    times = {
        str(simulation.table.action_at(row)): simulation.start[row]
        for row in range(simulation.table.num_entries)
    }
    assert (times["1B0"], times["0F1"], times["0B0"], times["1F1"]) == (2, 4, 4, 7)


def test_peaks_up_to_input_and_up_to_weight():
    simulation = simulate(_table("0F0 0I0 0F1 0I1 0W0 0W1", placement=(0,), m=2))

    assert (simulation.peak_in_flight_input.tolist(), simulation.peak_in_flight_weight.tolist()) == ([1], [2])


def test_a_rank_with_nothing_to_do():
    simulation = simulate(_table("0F0 0B0", "", placement=(0,)))

    assert simulation.span.tolist() == [3, 0]
    assert simulation.peak_in_flight_input.tolist() == [1, 0]


def test_a_table_that_cannot_run_is_refused_with_the_proof():
    circle = _table("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1", m=2)

    with pytest.raises(BadTableError, match="rank 0 cannot start 0B0 because rank 1 has not run 1B0"):
        simulate(circle)


def test_a_receive_after_its_computation_is_refused_with_the_proof():
    with pytest.raises(BadTableError, match="rank 1 cannot start 1F0 because its own 1RECV_F0 comes later"):
        simulate(_table(ONE[0], "1F0 1RECV_F0 1B0 1SEND_B0"))


def test_a_table_that_stops_at_its_very_first_action_is_refused():
    stopped = _table("1F0 1RECV_F0", "0F0 0SEND_F0", placement=(1, 0))

    with pytest.raises(BadTableError, match="rank 0 cannot start 1F0 because its own 1RECV_F0 comes later"):
        simulate(stopped)


@pytest.mark.parametrize(
    "given_costs",
    [{"forward": -1.0}, {"forward": float("nan")}, {"input_grad": ()}, {"bandwidth": 0.0}, {"latency": -1.0}],
)
def test_impossible_costs_are_refused(given_costs):
    with pytest.raises(UsageError):
        Costs(**given_costs)


def test_costs_for_another_number_of_stages_are_refused():
    with pytest.raises(UsageError, match="given for 3 stages; the table has 2"):
        simulate(_table(*ONE), costs=Costs(forward=(1.0, 1.0, 1.0)))


def _path(simulation):
    """The critical path in words."""
    return " ".join(str(simulation.table.action_at(row)) for row in simulation.critical_path())


WAITS = {
    "a pair waits for what its backward needs": (
        _table("0F0 (0F1;0B0)OVERLAP_F_B", "1F0 1B0", m=2),
        Costs(),
        (7, "0F0 1F0 1B0 0F1"),
    ),
    "a pair waits for what its forward needs": (
        _table("0F0 0F1 0B0 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1", m=2),
        Costs(forward=(3.0, 1.0)),
        (13, "0F0 0F1 1B0 0B0 0B1"),
    ),
    "a pair waits for what its rank did before": (
        _table("0F0 0F1", "1F0 1F2 (1F1;1B0)OVERLAP_F_B", m=3),
        Costs(forward=(1.0, 4.0)),
        (15, "0F0 1F0 1F2 1F1"),
    ),
    "a transfer takes its latency and its volume": (
        _table(*ONE),
        Costs(latency=0.5, message_bytes=100.0, bandwidth=50.0),
        (11, "0F0 0SEND_F0 1F0 1B0 1SEND_B0 0B0"),
    ),
    "a send that occupies its rank is on the path": (
        _table(*ONE),
        Costs(latency=0.5, message_bytes=100.0, bandwidth=50.0, overlap=False),
        (11, "0F0 0SEND_F0 1F0 1B0 1SEND_B0 0B0"),
    ),
    "a late receive is on the path": (
        _table("0F0 0SEND_F0", "1F1 1RECV_F0 1F0", m=2),
        Costs(forward=(1.0, 5.0), latency=2.0),
        (12, "1F1 1RECV_F0 1F0"),
    ),
    "a table without sends pays for their volume, whoever pays": (
        _table("0F0 0B0", "1F0 1B0"),
        Costs(latency=0.5, message_bytes=100.0, bandwidth=50.0, overlap=False),
        (11, "0F0 1F0 1B0 0B0"),
    ),
    "of a pair's two parts the one that waits longer holds it up": (
        _table("0F0 0F1", "1F0 (1F1;1B0)OVERLAP_F_B", "2F0 2B0", placement=(0, 1, 2), m=2),
        Costs(),
        (8, "0F0 1F0 2F0 2B0 1F1"),
    ),
    "of what ends at once it is what the rank itself did": (
        _table("1F1 1F0", "0F0", placement=(1, 0), m=2),
        Costs(),
        (2, "1F1 1F0"),
    ),
    "what a pair at the very beginning makes is there when the pair ends": (
        _table("(0F1;0B0)OVERLAP_F_B", "1F1", m=2),
        Costs(),
        (4, "0B0 1F1"),
    ),
    "what is made by the first action of all can be waited for": (
        _table("1B0", "0B0", placement=(1, 0)),
        Costs(),
        (4, "1B0 0B0"),
    ),
    "within a rank nothing is sent": (
        _table("0F0 1F0", placement=(0, 0)),
        Costs(latency=5.0),
        (2, "0F0 1F0"),
    ),
    "who need not wait follows its own rank": (_table("0F0 0B0", "1F0 1B0"), Costs(), (6, "0F0 1F0 1B0 0B0")),
    "nothing waits on one rank": (
        _table("0F0 1F0 1B0 0B0", placement=(0, 0)),
        Costs(),
        (6, "0F0 1F0 1B0 0B0"),
    ),
}


@pytest.mark.parametrize(("table", "costs", "told"), WAITS.values(), ids=WAITS)
def test_the_critical_path_names_what_held_each_step_up(table, costs, told):
    simulation = simulate(table, costs=costs)

    assert (simulation.makespan, _path(simulation)) == told


def test_an_empty_table_has_no_critical_path_and_is_never_idle():
    simulation = simulate(_table("", ""))

    assert simulation.critical_path() == ()
    assert (simulation.makespan, simulation.busy_fraction) == (0, 1)
    assert simulation.peak_in_flight_weight.tolist() == [0, 0]


def test_a_rank_holds_at_least_nothing():
    """A wrong table may free what it never made."""
    simulation = simulate(_table("0B0 0F0", placement=(0,)))

    assert simulation.peak_in_flight_input.tolist() == [0]


def test_what_a_rank_does_besides_computing_is_outside_its_span():
    """Sharding takes no time, and a send after the last computation leaves the rank idle."""
    table = _table("0UNSHARD 0F0 0SEND_F0 0RESHARD", "1RECV_F0 1F0")
    simulation = simulate(table, costs=Costs(message_bytes=3.0, bandwidth=1.0, overlap=False))

    assert simulation.makespan == 1 + 3 + 1
    assert simulation.span.tolist() == simulation.busy.tolist() == [1, 1]
    assert simulation.span_bubble.tolist() == [0, 0]
    assert simulation.makespan_bubble.tolist() == [4, 4]


def test_where_ranks_stop_is_told_if_they_do_not_wait_in_a_circle():
    """The deadlock rules leave transfers out that have no partner; nothing comes through them all the same."""
    ranks = ("0B0 0F0 0SEND_F0 (0SEND_F1;0RECV_B1)BATCH", "1F0 1B0 1SEND_B0", "")

    with pytest.raises(BadTableError) as raised:
        simulate(_table(*ranks, m=2))

    assert str(raised.value) == "the table cannot be run: rank 0 stops at 0B0; rank 1 stops at 1F0"


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(
    item=st.sampled_from(families()),
    p=st.sampled_from([2, 3, 4]),
    m=st.sampled_from([4, 6, 8]),
    lowered=st.booleans(),
    costs=st.builds(
        Costs,
        forward=st.sampled_from([1.0, 1.5]),
        input_grad=st.sampled_from([1.0, 2.25]),
        weight_grad=st.sampled_from([0.5, 1.0]),
        latency=st.sampled_from([0.0, 0.25]),
    ),
)
def test_the_critical_path_explains_the_whole_makespan(item, p, m, lowered, costs):
    """It starts at 0, ends with the makespan, and each row starts when its predecessor lets it."""
    size = Size(p, 2 if item.placement != "loop" else 1, m)
    if item.refusal(size):
        return
    table = item.generate(num_ranks=p, stages_per_rank=size.stages_per_rank, num_microbatches=m)
    simulation = simulate(lower(table) if lowered else table, costs=costs)

    path = simulation.critical_path()

    assert simulation.start[path[0]] == 0
    assert simulation.end[path[-1]] == simulation.makespan
    gaps = [simulation.start[b] - simulation.end[a] for a, b in itertools.pairwise(path)]
    gaps = [gap for gap in gaps if gap > 0]
    assert all(gap == pytest.approx(costs.latency) for gap in gaps)


def test_order_of_ranks_does_not_matter():
    """The same table with its ranks renumbered backwards takes the same time."""
    table = lower(generate("zb_h1", num_ranks=4, num_microbatches=6))
    mirrored = Table.build(
        list(table)[::-1], placement=[3 - rank for rank in table.placement], num_microbatches=6
    )
    costs = Costs(forward=1.0, input_grad=1.5, weight_grad=0.5, latency=0.1)

    assert np.array_equal(simulate(table, costs=costs).busy, simulate(mirrored, costs=costs).busy[::-1])
    assert simulate(table, costs=costs).makespan == simulate(mirrored, costs=costs).makespan


def test_chimera_unit_takes_the_papers_time():
    """p microbatches over p ranks, F = B: 3p − 2 slots (arXiv 2107.06925)."""
    for p in (2, 4, 8):
        table = generate("chimera", num_ranks=p, stages_per_rank=2, num_microbatches=p)
        costs = Costs(forward=1.0, input_grad=0.5, weight_grad=0.5)
        assert simulate(table, costs=costs).makespan == 3 * p - 2


def test_kinds_without_time_take_none():
    table = _table("0UNSHARD 0F0 0B0 0REDUCE_GRAD 0RESHARD", placement=(0,))

    assert simulate(table).makespan == 3
    assert int(Kind.UNSHARD) == table.kinds[0]


@pytest.mark.parametrize("name", ["forward", "input_grad", "weight_grad"])
def test_every_cost_of_a_computation_is_a_number_or_one_for_each_stage(name):
    assert getattr(Costs(**{name: 0.0}), name) == 0
    assert getattr(Costs(**{name: [0.0, 2]}), name) == (0, 2)
    for wrong in (-0.5, float("inf"), [], [1.0, -1.0], [float("nan")]):
        with pytest.raises(UsageError, match=f"cost {name}=.*expected finite numbers ≥ 0"):
            Costs(**{name: wrong})


@pytest.mark.parametrize("name", ["latency", "message_bytes", "pair_factor"])
def test_prices_are_at_least_0(name):
    assert getattr(Costs(**{name: 0.0}), name) == 0
    with pytest.raises(UsageError, match="latency, message_bytes and pair_factor must be ≥ 0"):
        Costs(**{name: -0.5})


def test_costs_for_each_stage_are_for_all_of_them():
    assert simulate(_table("0F0", "1F0"), costs=Costs(forward=(1.0, 2.0))).makespan == 3
    with pytest.raises(UsageError, match="cost weight_grad is given for 1 stages; the table has 2"):
        simulate(_table("0F0", "1F0"), costs=Costs(weight_grad=(1.0,)))
