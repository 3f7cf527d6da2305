"""Cases clip by the norms, and gradients of the dtypes, that are claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeconform.adapter import ClippingClaim
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.focus import Focus
from tests.case.draw.drawn import drawn_under
from tests.case.examples import EVERYTHING

GPIPE = EVERYTHING.schedules[0]


@pytest.mark.parametrize(
    ("claim", "norms", "dtypes"),
    [
        (ClippingClaim(), {"two", "maximum"}, {"float64", "float32"}),
        (ClippingClaim(norms=("two",)), {"two"}, {"float64", "float32"}),
        (ClippingClaim(norms=("maximum",)), {"maximum"}, {"float64", "float32"}),
        (ClippingClaim(dtypes=("float32",)), {"two", "maximum"}, {"float32"}),
        (ClippingClaim(norms=("two",), dtypes=("float64", "bfloat16")), {"two"}, {"float64"}),
    ],
)
def test_what_is_clipped_and_how_is_claimed(claim, norms, dtypes):
    drawn = drawn_under(replace(EVERYTHING, clipping=claim), Focus.CLIPPED, range(20))
    assert {case.optimizer.clip.norm for case in drawn} == norms
    assert {case.model.dtype for case in drawn} == dtypes


def test_a_single_stage_is_not_clipped():
    assert min(case.num_stages for case in drawn_under(EVERYTHING, Focus.CLIPPED, range(20))) == 2


@pytest.mark.parametrize("claim", [ClippingClaim(norms=()), ClippingClaim(dtypes=("float16",))])
def test_without_a_norm_or_a_dtype_nothing_is_claimed(claim):
    assert is_claimed(Focus.CLIPPED, GPIPE, EVERYTHING)
    assert not is_claimed(Focus.CLIPPED, GPIPE, replace(EVERYTHING, clipping=claim))
