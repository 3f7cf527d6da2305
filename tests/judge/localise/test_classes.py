"""Whether a tensor left its class: bit for bit, within its bound, or by how far off it is where there is none."""

from __future__ import annotations

import pytest
import torch

from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.localise.classes import Classes, passages_of
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Flow, Reference, StepExpected
from tests.case.examples import EVERYTHING, small_case

PLACE = ("output gradient", 1, 2, 0)
ONES = torch.ones(3, dtype=torch.float64)


def array(factor: float) -> Array:
    return Array.of(ONES * factor)


def classes(*, bound: float | None = 0.5, refuses: bool = False) -> Classes:
    """A comparison with one known value, where numbers reach 1."""
    flow = Flow(1, 2, "output gradient", 0, array(1), None if bound is None else array(bound))
    step = StepExpected(
        step=0, flow=(flow,), gradients={0: {"w": array(1)}}, loss_bounds=(array(0.25), array(2))
    )

    def bounded(_: str) -> Reference:
        if refuses:
            raise HarnessError("an operation has no rule")
        return Reference(steps=(step,))

    return Classes(
        Evidence(
            case=small_case(),
            capabilities=EVERYTHING,
            shown=(),
            expected=Reference(steps=(step,)),
            bounded=bounded,  # type: ignore[arg-type]  # one answer to all questions
        )
    )


@pytest.mark.parametrize(
    ("mine", "differs", "exceeds"), [(1.0, False, False), (1.5, True, False), (1.75, True, True)]
)
def test_a_value_differs_in_its_bits_and_exceeds_its_bound(mine: float, differs: bool, exceeds: bool) -> None:
    found, beyond = classes().judged(0, array(1), array(mine), PLACE)

    assert (found is not None, beyond) == (differs, exceeds)


def test_a_bound_is_scaled_with_what_it_is_of() -> None:
    made = classes()
    for scale in (2.0, -2.0):
        assert made.judged(0, array(2), array(3), PLACE, scale=scale)[1] is False
        assert made.judged(0, array(2), array(3.5), PLACE, scale=scale)[1] is True


def test_what_is_on_one_side_only_has_left_its_class_and_what_is_on_none_has_not() -> None:
    made = classes()

    assert made.judged(0, None, None, PLACE) == (None, False)
    for right, mine, kind in ((array(1), None, "missing"), (None, array(1), "unexpected")):
        found, exceeds = made.judged(0, right, mine, PLACE)
        assert found is not None
        assert (found.kind, exceeds) == (kind, True)


def test_another_shape_is_no_matter_of_bounds() -> None:
    found, exceeds = classes(refuses=True).judged(0, array(1), Array.of(ONES[:2]), PLACE)

    assert found is not None
    assert (found.kind, exceeds) == ("shape", True)


@pytest.mark.parametrize(
    "where", [("input", 1, 2, 0), ("output gradient", 0, 2, 0), ("output gradient", 1, 2, 1)]
)
def test_a_value_whose_bound_is_not_known_has_left_its_class_if_its_bits_differ(
    where: tuple[str, int, int, int],
) -> None:
    made = classes()

    assert made.judged(0, array(1), array(1), where) == (None, False)
    assert made.judged(0, array(1), array(1.25), where)[1] is True
    assert classes(bound=None).judged(0, array(1), array(1.25), PLACE)[1] is True


def test_a_loss_has_the_bound_of_its_microbatch() -> None:
    made = classes()

    assert made.judged(0, array(1), array(1.5), ("loss", 0, 0, 0))[1] is True
    assert made.judged(0, array(1), array(1.5), ("loss", 0, 1, 0))[1] is False


def test_without_bounds_only_what_is_enormous_has_left_its_class_and_it_is_said() -> None:
    for made in (classes(refuses=True), classes()):
        if made.judged(0, array(1), array(1 + 1e-12), PLACE)[1] is False and made.are_bounded:
            made.give_up()
        assert not made.are_bounded
        assert made.judged(0, array(1), array(1 + 1e-12), PLACE)[1] is False
        assert made.judged(0, array(1), array(1.25), PLACE)[1] is True


def test_bounds_that_are_not_needed_are_not_asked_for() -> None:
    made = classes(refuses=True)

    assert made.judged(0, array(1), array(1), PLACE) == (None, False)
    assert made.are_bounded


# ---------------------------------------------------------------------------- several candidates


@pytest.mark.parametrize(
    ("mine", "chosen"),
    [
        ((1.0,), 1.0),
        ((1.0, 9.0), 1.0),
        ((1.25, 9.0), 1.25),
        ((9.0, 1.0), 1.0),
        ((3.0, -2.0), 1.0),
        ((3.0, 2.0, -4.0), 1.0),
        ((9.0, 1.25, 7.0), 1.25),
    ],
    ids=[
        "alone",
        "the first",
        "the first within its bound",
        "the last",
        "two parts",
        "three parts",
        "in the middle",
    ],
)
def test_a_gradient_may_pass_repeatedly_or_in_parts(mine: tuple[float, ...], chosen: float) -> None:
    found = classes().best(0, array(1), [array(one) for one in mine], PLACE, scale=1.0)

    assert found == (None, False, array(chosen))


def test_of_candidates_that_are_all_wrong_the_first_is_told() -> None:
    found, exceeds, shown = classes().best(0, array(1), [array(8), array(9)], PLACE, scale=1.0)

    assert found is not None
    assert (found.actual, exceeds, shown) == ("8.0", True, array(8))


def test_no_gradient_counts_as_zeros() -> None:
    made = classes()

    assert made.best(0, array(0), [], PLACE, scale=1.0) == (None, False, None)
    found, exceeds, shown = made.best(0, array(1), [], PLACE, scale=1.0)
    assert found is not None
    assert (found.kind, exceeds, shown) == ("missing", True, None)


def test_what_passes_is_found_by_its_place() -> None:
    one, other = (Flow(1, k, "input", 0, array(k), None) for k in (0, 1))

    assert passages_of([one, other]) == {("input", 1, 0, 0): one, ("input", 1, 1, 0): other}
