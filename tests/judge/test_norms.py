"""On every rank, the norm over all stages may differ only by what rounding explains."""

from __future__ import annotations

import pytest
import torch

from pipeconform.case import blocks
from pipeconform.case.case import Model, Stage
from pipeconform.case.world import World
from pipeconform.judge.evidence import Finding
from pipeconform.observe.array import Array
from tests.judge.honest import changed, expecting, found, honest, honest_example, plain_case, told, value_of


def _norm(factor: float = 1.0, dtype: torch.dtype = torch.float64) -> Array:
    norm = honest_example("plain").shown[0].steps[0].gradient_norm
    assert norm is not None
    return Array.of((norm.tensor() * factor).to(dtype))


def test_another_norm_on_one_rank_is_told_there() -> None:
    made = honest_example("plain")

    assert told("TRN-17", changed(made, rank=1, gradient_norm=_norm(1 + 1e-9))) == [
        ("norm", 0, 1, None, None)
    ]
    assert told("TRN-17", changed(made, rank=1, gradient_norm=None)) == [("no norm", 0, 1, None, None)]


def test_rounding_of_the_sum_or_to_a_smaller_dtype_is_no_violation() -> None:
    made = honest_example("plain")

    assert found("TRN-17", changed(made, rank=1, gradient_norm=_norm(1 + 2**-50))) == []
    assert found("TRN-17", changed(made, rank=1, gradient_norm=_norm(dtype=torch.float32))) == []


@pytest.mark.parametrize(("off", "is_told"), [(2.0**-22, False), (2.0**-16, True)])
def test_a_norm_in_float64_may_come_from_squares_in_the_dtype_of_the_gradients(
    off: float, is_told: bool
) -> None:
    made = honest(
        plain_case(model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)),) * 2, dtype="float32"))
    )
    norm = made.shown[1].steps[0].gradient_norm
    assert norm is not None
    wrong = changed(made, rank=1, gradient_norm=Array.of(norm.tensor().double() * (1 + off)))

    assert bool(found("TRN-17", wrong)) is is_told


@pytest.mark.parametrize(("steps", "is_told"), [(20, False), (60, True)])
def test_a_norm_is_as_many_roundings_off_as_there_are_squares_and_four_more(
    steps: int, is_told: bool
) -> None:
    """The two stages have 24 parameters: a norm may be 28 units of its last digit off."""
    for sign in (-1, 1):
        made = changed(honest_example("plain"), rank=1, gradient_norm=_norm(1 + sign * steps * 2.0**-52))

        assert bool(found("TRN-17", made)) is is_told


def test_a_norm_that_is_not_finite_is_told() -> None:
    wrong = changed(honest_example("plain"), rank=0, gradient_norm=_norm(float("nan")))

    assert told("TRN-17", wrong) == [("norm", 0, 0, None, None)]


def test_the_norm_of_gradients_whose_squares_overflow_is_not_judged() -> None:
    made = changed(honest_example("plain"), rank=0, gradient_norm=_norm(float("inf")))
    gradients = made.expected.steps[0].gradients
    large = {
        s: {n: v and Array.of(v.tensor() + 1e160) for n, v in own.items()} for s, own in gradients.items()
    }

    assert told("TRN-17", made) == [("norm", 0, 0, None, None)]
    assert told("TRN-17", expecting(made, gradients=large)) == []


@pytest.mark.parametrize(("tied", "copies"), [((0, 1), 1), ((0, 2), 1), ((0, 1, 2), 2)])
def test_what_stages_share_is_counted_once(tied: tuple[int, ...], copies: int) -> None:
    stages = (Stage(blocks=(blocks.Linear(),)),) * 3
    world = World(size=3, pipeline_ranks=(0, 1, 2))
    case = plain_case(model=Model(width=3, stages=stages, tied=tied), world=world)
    made = honest(case)
    values = [v.tensor() for own in made.expected.steps[0].gradients.values() for v in own.values() if v]
    shared = value_of(made, "gradients", 0, "tied").square().sum()
    whole = torch.stack([value.square().sum() for value in values]).sum()

    def reporting(square: torch.Tensor) -> list[Finding]:
        norm = Array.of(square.sqrt())
        so = made
        for rank in range(3):
            so = changed(so, rank=rank, gradient_norm=norm)
        return found("TRN-17", so)

    assert reporting(whole - copies * shared) == []
    assert [finding.rank for finding in reporting(whole)] == [0, 1, 2]
