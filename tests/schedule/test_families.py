"""Every family keeps, at every size it allows, what its source promises."""

import itertools
import math
import re

import pytest

from pipeconform.errors import UnknownNameError, UsageError
from pipeconform.schedule import Costs, families, family, generate, lower, simulate, verify
from pipeconform.schedule.families.family import Size, Stage

NAMES = [item.name for item in families()]
RANKS, PER_RANK, MICROBATCHES = (1, 2, 3, 4, 6), (1, 2, 3), (1, 2, 3, 4, 6, 8, 12, 13, 24)
COSTS = [Stage(1, 1, 1), Stage(1, 2, 1), Stage(2, 1, 1), Stage(1, 1, 0.5), Stage(2, 1, 1)]


def _sizes(item):
    grid = map(Size._make, itertools.product(RANKS, PER_RANK, MICROBATCHES))
    return [size for size in grid if item.refusal(size) is None]


def _table(item, size):
    return item.generate(
        num_ranks=size.num_ranks,
        stages_per_rank=size.stages_per_rank,
        num_microbatches=size.num_microbatches,
    )


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_correct_and_within_their_memory(name):
    """SCH-1, 3, 5, 7: complete, ordered, placed, free of deadlock, in flight within the bound."""
    item = family(name)
    for size in _sizes(item):
        ranks = range(size.num_ranks)
        bounds = {
            "max_in_flight_input": [item.in_flight_input(rank, size) for rank in ranks],
            "max_in_flight_weight": [item.in_flight_weight(rank, size) for rank in ranks],
        }
        table = _table(item, size)
        for judged in (table, lower(table)):
            assert (size, ()) == (size, verify(judged, forward_only=item.forward_only, **bounds))


@pytest.mark.parametrize("name", NAMES)
def test_memory_bounds_are_reached(name):
    """SCH-3: a bound that no rank ever reaches would catch nothing."""
    item = family(name)
    size = max(_sizes(item), key=lambda size: (size.num_ranks == 4, size.num_microbatches, size))
    simulation = simulate(_table(item, size))

    reached = [
        max(a - b for a, b in zip(peaks, (bound(rank, size) for rank in range(4)), strict=True))
        for peaks, bound in (
            (simulation.peak_in_flight_input.tolist(), item.in_flight_input),
            (simulation.peak_in_flight_weight.tolist(), item.in_flight_weight),
        )
    ]

    assert reached == [0, 0]


@pytest.mark.parametrize("name", [name for name in NAMES if family(name).bubble])
def test_bubbles_are_what_the_formula_says(name):
    """SCH-4: no larger than the published bound, and equal to it where it is exact."""
    item, judged = family(name), 0
    for size, cost in itertools.product(_sizes(item), COSTS):
        if not item.bubble.holds(size, cost):
            continue
        judged += 1
        costs = Costs(forward=cost.forward, input_grad=cost.input_grad, weight_grad=cost.weight_grad)
        simulation = simulate(_table(item, size), costs=costs)
        bubbles = simulation.span_bubble if item.bubble.kind == "span" else simulation.makespan_bubble
        bound = item.bubble.bound(size, cost)
        assert max(bubbles) <= bound + 1e-9, (size, cost)
        assert not item.bubble.exact or max(bubbles) == pytest.approx(bound), (size, cost)

    assert judged >= 5


def _value(formula, rank, size):
    """A formula for people, computed."""
    p, v, m = size
    source = formula.replace("−", "-").replace("·", "*").replace("⌊", "floor(").replace("⌋", ")")
    source = re.sub(r"(\d)([pm])", r"\1*\2", source.replace(" = ", " == "))
    known = {"p": p, "v": v, "m": m, "r": rank, "g": m // max(1, m // p), "min": min, "floor": math.floor}
    return eval(source, {"__builtins__": {}}, known)


@pytest.mark.parametrize("name", NAMES)
def test_memory_bounds_are_what_their_formula_says(name):
    item = family(name)
    to_i, _, to_w = item.in_flight.partition(" to I, ")
    formulas = to_i, to_w.removesuffix(" to W") or to_i

    for size in _sizes(item):
        for rank in range(size.num_ranks):
            bounds = item.in_flight_input(rank, size), item.in_flight_weight(rank, size)
            assert bounds == tuple(_value(formula, rank, size) for formula in formulas), (size, rank)


def test_lowering_costs_no_time_with_free_communication():
    for name in NAMES:
        item = family(name)
        size = max(_sizes(item), key=lambda size: (size.num_ranks == 4, size.num_microbatches, size))
        table = _table(item, size)
        assert simulate(table).makespan == simulate(lower(table)).makespan


def test_1f1b_written_by_hand():
    table = generate("one_f_one_b", num_ranks=2, num_microbatches=3)

    assert [" ".join(map(str, a)) for a in table] == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]


def test_interleaved_written_by_hand():
    table = generate("interleaved_one_f_one_b", num_ranks=2, stages_per_rank=2, num_microbatches=2)

    assert [" ".join(map(str, a)) for a in table] == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


def test_megatron_warms_up_with_everything_if_m_is_p():
    table = generate("interleaved_one_f_one_b_megatron", num_ranks=2, stages_per_rank=2, num_microbatches=2)

    assert all([action.kind.name for action in actions] == ["F"] * 4 + ["B"] * 4 for actions in table)


def test_zb_h1_written_by_hand():
    table = generate("zb_h1", num_ranks=2, num_microbatches=3)

    assert [" ".join(map(str, a)) for a in table] == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]


def test_bidirectional_families_hold_two_independent_chains():
    table = generate("chimera", num_ranks=4, stages_per_rank=2, num_microbatches=4)

    assert (table.num_chains, table.placement, table.num_microbatches) == (2, (0, 1, 2, 3, 3, 2, 1, 0), 2)


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("gpipe", (2, 2, 4), "one stage per rank"),
        ("gpipe", (0, 1, 4), "at least 1"),
        ("zb_v", (2, 1, 4), "two stages per rank"),
        ("dualpipe_v", (2, 2, 3), "m ≥ 2p"),
        ("dualpipe", (3, 2, 6), "even"),
        ("dualpipe", (4, 2, 6), "m ≥ 2p"),
        ("chimera", (4, 2, 6), "p must divide m"),
        ("interleaved_one_f_one_b", (2, 2, 5), "number of rounds"),
        ("interleaved_one_f_one_b_megatron", (4, 2, 6), "p must divide m"),
    ],
)
def test_sizes_a_family_does_not_have_are_refused_with_the_reason(name, size, reason):
    """SCH-6"""
    p, v, m = size

    with pytest.raises(UsageError, match=reason):
        generate(name, num_ranks=p, stages_per_rank=v, num_microbatches=m)


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(UnknownNameError, match="interleaved_one_f_one_b"):
        generate("interleaved_1f1b", num_ranks=2, num_microbatches=2)


def test_names_are_sorted_and_sourced():
    assert sorted(NAMES) == NAMES
    assert all(item.source and item.title for item in families())
