"""Which mistakes are drawn."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from pipeconform.case.case import Model, Stage
from pipeconform.case.draw.mistakes import dtypes
from pipeconform.case.focus import Focus
from tests.case.draw.drawn import drawn_under
from tests.case.examples import EVERYTHING


@pytest.mark.parametrize(
    ("dtype", "claimed", "larger"),
    [
        ("float32", ("float64", "float32"), True),
        ("bfloat16", ("float32", "bfloat16"), True),
        ("float16", ("float32", "float16"), True),
        ("float64", ("float64", "float32"), False),
        ("float32", ("float32", "bfloat16"), False),
        ("float16", ("float16", "bfloat16"), False),
    ],
)
def test_a_larger_dtype_is_wrong_only_where_it_is_claimed(dtype, claimed, larger):
    """A device may have no float64, and what cannot be made there would be told as the engine's mistake."""
    drawing = SimpleNamespace(boundary=SimpleNamespace(dtypes=claimed))
    found = dtypes(drawing, Model(width=2, stages=(Stage(blocks=()),), dtype=dtype))
    assert ("up" in found) == larger
    assert set(found) - {"up"} == {"down", "integer", "complex"}


@pytest.mark.parametrize(("claimed", "first"), [(("tensor",), True), (("tensor", "mapping"), False)])
def test_a_mapping_in_the_first_step_is_wrong_only_where_none_may_cross(claimed, first):
    own = dataclasses.replace(
        EVERYTHING, boundary=dataclasses.replace(EVERYTHING.boundary, containers=claimed)
    )
    steps = [
        index
        for case in drawn_under(own, Focus.WRONG_VALUES, range(100))
        for index, step in enumerate(case.trains)
        if step.mistake is not None and step.mistake.how == "mapping"
    ]

    assert steps
    assert (0 in steps) is first
