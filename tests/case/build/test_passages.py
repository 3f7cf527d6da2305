"""Passages have the shapes and gradients that their kinds promise, and change what uses them."""

from __future__ import annotations

import pytest
import torch

from pipeconform.case.blocks import Linear
from pipeconform.case.build.data import make_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.build.passages import make, use
from pipeconform.case.case import Case, Model, Passage, PassageKind, Stage, World
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case

SHAPES: dict[PassageKind, tuple[int, ...]] = {
    "stream": (2, 5, 3),
    "summed": (2, 5, 3),
    "turned": (2, 5, 3),
    "bypass": (2, 5, 3),
    "float8": (2, 5, 3),
    "complex": (2, 5, 3),
    "rotations": (2, 5, 3),
    "scalar": (),
    "flat": (10,),
    "single": (2, 5, 1, 1),
    "deep": (2, 1, 5, 1, 3),
    "empty": (2, 5, 0),
}


def _case(*passages: Passage) -> Case:
    model = Model(width=3, stages=(Stage(blocks=(Linear(),)),) * 4, passages=passages, container="tuple")
    return small_case(model=model, world=World(size=4, pipeline_ranks=(0, 1, 2, 3)))


@pytest.mark.parametrize("kind", SHAPES)
def test_every_kind_has_its_shape_and_is_a_tensor_of_its_own(kind: PassageKind) -> None:
    x = torch.randn(2, 5, 3, requires_grad=True)

    made = make(kind, x)

    assert tuple(made.shape) == SHAPES[kind]
    assert made.requires_grad is (kind not in ("float8", "rotations"))
    assert not made._is_view()


@pytest.mark.parametrize("kind", [kind for kind in SHAPES if kind != "empty"])
def test_a_used_passage_matters(kind: PassageKind) -> None:
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    value, other = make(kind, x), make(kind, torch.randn_like(x))

    assert float((use(kind, x, value) - use(kind, x, other)).abs().max()) > 1e-2


def test_the_gradients_of_two_kinds_have_unusual_layouts() -> None:
    def strides(kind: PassageKind) -> tuple[int, ...]:
        x = torch.randn(4, 3)
        value = make(kind, x).requires_grad_()
        (gradient,) = torch.autograd.grad(use(kind, x, value).square().sum(), value)
        return gradient.stride()

    assert strides("summed") == (0, 0)
    assert strides("turned") == (1, 4)


def test_stages_between_hand_on_what_they_were_given_and_only_users_use_it() -> None:
    case = _case(Passage(kind="stream", source=0, last=3, users=(2,)))
    values = build_stage(case, 0)(make_batch(case, 0).args[0])
    changed = (values[0], values[1] + 1)

    first, other = build_stage(case, 1)(*values), build_stage(case, 1)(*changed)
    assert first[1] is values[1]
    assert torch.equal(first[0], other[0])
    assert not torch.equal(build_stage(case, 2)(*first)[0], build_stage(case, 2)(*other)[0])
    assert len(build_stage(case, 2)(*first)) == 2
    assert isinstance(build_stage(case, 3)(*build_stage(case, 2)(*first)), torch.Tensor)


@pytest.mark.parametrize(
    ("passage", "reason"),
    [
        (Passage(kind="stream", source=1, last=1), "from stage 1 to stage 1 does not fit 4 stages"),
        (Passage(kind="stream", source=0, last=4), "from stage 0 to stage 4 does not fit 4 stages"),
        (Passage(kind="stream", source=1, last=2, users=(1,)), "stages .1. cannot use what passes"),
    ],
)
def test_impossible_passages_are_refused(passage: Passage, reason: str) -> None:
    with pytest.raises(BadCaseError, match=reason):
        _case(passage)
