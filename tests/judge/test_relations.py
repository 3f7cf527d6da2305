"""What is said of the gradients of earlier steps; the judgement as a whole is in test_training.py."""

import pytest
import torch

from pipeconform.judge.relations import fate_of_earlier_steps, uniform_ratio
from pipeconform.observe.array import Array


def _told(before, right, mine, m=2):
    return fate_of_earlier_steps(
        before={"w": before if before is None else Array.of(before)},
        right={"w": Array.of(right)},
        mine={} if mine is None else {"w": Array.of(mine)},
        m=m,
    )


def _tensor(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_lost_share_is_told_in_every_precision(dtype):
    before, step = _tensor(3.0, -5.0, dtype=dtype), _tensor(-7.0, 2.0, dtype=dtype)

    assert _told(before, before + step, step) == "earlier steps lost"


def test_what_is_explained_in_two_ways_is_not_told():
    # equal shares: either of the two may be missing
    before = _tensor(1.0, 1.0)

    assert _told(before, 2 * before, before) == ""


@pytest.mark.parametrize(
    ("before", "mine"),
    [
        (None, _tensor(1.0, 2.0)),
        (_tensor(0.0, 0.0), _tensor(1.0, 2.0)),
        (_tensor(3.0, 5.0), None),
        (_tensor(3.0, 5.0), _tensor(1.0, 2.0, 3.0)),
        (_tensor(3.0, 5.0), _tensor(float("nan"), 2.0)),
        (_tensor(3.0, 5.0), _tensor(40.0, -2.0)),
    ],
    ids=["nothing before", "zeros before", "missing", "another shape", "no number", "neither"],
)
def test_nothing_is_told_without_a_plain_relation(before, mine):
    assert _told(before, _tensor(10.0, -1.0), mine) == ""


@pytest.mark.parametrize(
    "fate", ["earlier steps counted twice", "this step lost", "earlier steps multiplied by m"]
)
@pytest.mark.parametrize("m", [3, 4])
def test_every_fate_has_a_name(fate, m):
    before, step = _tensor(3.0, -5.0), _tensor(-7.0, 2.0)
    mine = {"earlier steps counted twice": 2 * before + step, "this step lost": before}.get(
        fate, m * before + step
    )

    assert _told(before, before + step, mine, m=m) == fate


def test_with_two_microbatches_twice_is_all_that_is_said():
    before, step = _tensor(3.0, -5.0), _tensor(-7.0, 2.0)

    assert _told(before, before + step, 2 * before + step, m=2) == "earlier steps counted twice"


@pytest.mark.parametrize(("off", "told"), [(16, "earlier steps lost"), (64, "")])
def test_another_order_of_additions_may_round_otherwise_and_no_more(off, told):
    before, step = _tensor(1.0, 0.0), _tensor(0.0, 1.0)
    mine = step + off * 2 * torch.finfo(torch.float64).eps * _tensor(1.0, 0.0)

    assert _told(before, before + step, mine) == told


def test_names_without_a_right_value_and_whole_numbers_say_nothing():
    before, step = _tensor(3.0, -5.0), _tensor(-7.0, 2.0)
    more = {"a": None, "n": Array.of(torch.tensor([1])), "w": Array.of(before + step)}

    assert (
        fate_of_earlier_steps(
            before={"w": Array.of(before), "n": Array.of(torch.tensor([1]))},
            right=more,
            mine={"w": Array.of(step), "n": Array.of(torch.tensor([2]))},
            m=2,
        )
        == "earlier steps lost"
    )


def _ratio(right, mine):
    return uniform_ratio({"w": Array.of(right)}, {"w": None if mine is None else Array.of(mine)})


def test_a_factor_is_told_where_all_values_have_it():
    right = _tensor(1.0, -2.0, 4.0)

    assert _ratio(right, 3 * right) == pytest.approx(3.0)
    assert _ratio(right, -right) == pytest.approx(-1.0)
    assert _ratio(right, right * (1 + 1e-2)) == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("factor", "told"),
    [(3.0, True), (-1.0, True), (1 / 12, True), (0.0, True), (-6.284, False), (0.7, False)],
)
def test_of_one_or_two_numbers_only_whole_multiples_and_parts_are_told(factor, told):
    for right in (_tensor(0.3), _tensor(0.3, 0.9)):
        assert (_ratio(right, factor * right) is not None) is told
    right = _tensor(0.3, 0.9, -2.0)
    assert _ratio(right, factor * right) == pytest.approx(factor)


@pytest.mark.parametrize(
    "mine",
    [
        _tensor(1.0, -2.0, 4.0),
        _tensor(1.0, -2.0, 4.0) * (1 + 1e-4),
        _tensor(3.0, -6.0, 13.0),
        _tensor(3.0, -6.0, float("inf")),
        _tensor(3.0, -6.0),
        None,
    ],
    ids=["equal", "nearly equal", "another value", "no number", "another shape", "missing"],
)
def test_no_factor_is_told_where_there_is_none(mine):
    assert _ratio(_tensor(1.0, -2.0, 4.0), mine) is None
    assert _ratio(_tensor(0.0, 0.0, 0.0), mine) is None


@pytest.mark.parametrize(("eps", "found"), [(512, True), (2048, False)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_how_far_from_a_factor_values_may_be_is_in_their_precision(dtype, eps, found, factor):
    """In units of round-off of the larger of both."""
    right = _tensor(1.0, 0.0, dtype=dtype)
    off = eps * torch.finfo(dtype).eps * max(1.0, factor)
    mine = _tensor(factor, off, dtype=dtype)

    assert (_ratio(right, mine) is not None) is found


def test_m_explains_nothing_where_it_is_one():
    before, step = _tensor(3.0, -5.0), _tensor(-7.0, 2.0)

    assert _told(before, before + step, before / 2 + step, m=1) == ""
    assert _told(before, before + step, before / 2 + step, m=2) == "earlier steps divided by m"


# ----------------------------------------------------------------- how close is close, with numbers by hand

EPS = 2.0**-52


@pytest.mark.parametrize(("off", "fate"), [(2.0**-44, "earlier steps lost"), (2.0**-44 + 2.0**-50, "")])
def test_an_explanation_is_32_roundings_of_what_was_added_away_at_most(off, fate):
    """Norms of 3 and 5 are added: 32 roundings of 8 are 2**-44."""
    before, step = _tensor(3.0, 0.0), _tensor(0.0, 5.0)

    assert _told(before, before + step, _tensor(0.0, 5.0 + off)) == fate


@pytest.mark.parametrize(("apart", "fate"), [(25 * EPS, "earlier steps lost"), (24 * EPS, "")])
def test_the_next_explanation_is_more_than_four_roundings_away(apart, fate):
    """Norms of 3 and 3 are added: four roundings of 6 are 24 ε, and ``this step lost`` is `apart`."""
    before, step = _tensor(3.0, 0.0), _tensor(3.0, apart)

    assert _told(before, before + step, step) == fate


@pytest.mark.parametrize(("off", "ratio"), [(2.0**-41, 2.0), (2.0**-41 + 2.0**-60, None), (0.0, 2.0)])
def test_one_factor_for_all_is_1024_roundings_away_at_most(off, ratio):
    """Of 2, 1024 roundings are 2**-41."""
    assert uniform_ratio({"w": Array.of(_tensor(1.0, 0.0))}, {"w": Array.of(_tensor(2.0, off))}) == ratio


@pytest.mark.parametrize(
    ("factor", "ratio"), [(0.5, 0.5), (1.002, 1.002), (1.0005, None), (1.0, None), (-1.0, -1.0)]
)
def test_a_factor_near_one_is_none(factor, ratio):
    right = _tensor(1.0, -4.0, 0.5)
    found = uniform_ratio({"w": Array.of(right)}, {"w": Array.of(factor * right)})

    assert found == (None if ratio is None else pytest.approx(ratio))
