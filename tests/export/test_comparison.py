"""Values of an exported program are compared plainly: far beyond rounding, far below any defect."""

import pytest
import torch
from torch import nn

from pipeconform.export.comparison import difference, differences, fired, flat, merged

RIGHT = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (RIGHT.clone(), ""),
        (RIGHT + 1e-13, ""),
        (RIGHT * 0.5, "element [0] is 0.5; expected 1"),
        (torch.tensor([1.0, float("nan"), 3.0], dtype=torch.float64), "element [1] is nan; expected -2"),
        (RIGHT[:2], "float64[2]; expected float64[3]"),
        (RIGHT.float(), "float32[3]; expected float64[3]"),
        (None, "nothing; expected float64[3]"),
    ],
)
def test_a_tensor_is_told_by_its_first_wrong_element_or_by_its_look(mine, told):
    assert difference(RIGHT, mine) == told


@pytest.mark.parametrize(
    ("expected", "mine", "told"),
    [
        (None, None, ""),
        (2, 2, ""),
        (2, 3, "3; expected 2"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "int64[2]; expected int64[2]"),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), ""),
        (None, torch.zeros(2), "float32[2]; expected nothing"),
    ],
)
def test_what_is_not_floating_is_equal_or_not(expected, mine, told):
    assert difference(expected, mine) == told


def test_every_rank_is_compared_with_what_is_right():
    shown = [{"a": RIGHT}, {"a": RIGHT, "b": 1}]

    assert list(differences([{"a": RIGHT, "b": 2}] * len(shown), shown)) == ["rank 1, b: 1; expected 2"]


def test_leaves_are_named_by_their_place_and_nothing_is_no_leaf():
    found = flat("output", {"x": RIGHT, "y": (RIGHT, None)})

    assert list(found) == ["output[0]", "output[1][0]"]
    assert flat("output", None) == {}


def test_microbatches_are_merged_through_containers():
    whole = merged([(RIGHT, {"k": RIGHT}), (RIGHT, {"k": RIGHT})], 0)

    assert whole[0].shape == (6,)
    assert whole[1]["k"].shape == (6,)


def test_the_models_own_hooks_are_counted_once():
    module, case = nn.Sequential(nn.Linear(1, 1)), type("Case", (), {"model": type("M", (), {"split": None})})
    module[0].fires = {"forward": 2}

    assert fired(case, 1, {0: module}) == {"step 1, stage 0, forward hooks": 2}
    assert fired(case, 1, {0: module}) == {}
