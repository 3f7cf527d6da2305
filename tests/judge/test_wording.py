"""Which shapes and stages the message of an error names."""

import pytest

from pipeconform.judge.wording import names_shape, names_stage


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rank 1, stage 1: bad", True),
        ("Stage 1 forward outputs", True),
        ("stage_index=1", True),
        ("stages 1", True),
        ("stage 10", False),
        ("backstage 1", False),
        ("microbatch 1", False),
    ],
)
def test_a_stage_is_named_by_its_number(text, found):
    assert names_stage(text, 1) is found


@pytest.mark.parametrize(
    ("text", "free", "found"),
    [
        ("expected float64[2, 3]", None, True),
        ("torch.Size([2, 3])", None, True),
        ("(2, 3)", None, True),
        ("[2, 3, 1]", None, False),
        ("[20, 3]", None, False),
        ("[20, 3]", 0, True),
        ("[*, 3]", 0, True),
        ("2 3", None, False),
    ],
)
def test_a_shape_is_named_in_brackets_of_any_kind(text, free, found):
    assert names_shape(text, (2, 3), free=free) is found
