"""What is said of the gradients of earlier steps; the judgement as a whole is in test_training.py."""

import pytest
import torch

from pipeconform.judge.relations import fate_of_earlier_steps
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


def test_m_explains_nothing_where_it_is_one():
    before, step = _tensor(3.0, -5.0), _tensor(-7.0, 2.0)

    assert _told(before, before + step, before / 2 + step, m=1) == ""
    assert _told(before, before + step, before / 2 + step, m=2) == "earlier steps divided by m"
