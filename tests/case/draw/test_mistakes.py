"""Which mistakes are drawn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeconform.case.case import Model, Stage
from pipeconform.case.draw.mistakes import dtypes


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
