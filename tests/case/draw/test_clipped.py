"""Cases clip by the norms, and gradients of the dtypes, that are claimed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pipeconform.adapter import Capabilities, ClippingClaim
from pipeconform.case.draw.cases import draw_case
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.focus import Focus, Limits
from tests.case.examples import EVERYTHING

GPIPE = EVERYTHING.schedules[0]


def _drawn(own: Capabilities, number: int = 40):
    generator = random.Random(5)
    limits = Limits(capabilities=own, max_ranks=3)
    for _ in range(number):
        drawing = Drawing(lambda entries: entries[generator.randrange(len(entries))], limits, GPIPE)
        yield draw_case(drawing, SUBJECTS[Focus.CLIPPED])


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
    drawn = list(_drawn(replace(EVERYTHING, clipping=claim)))
    assert {case.optimizer.clip.norm for case in drawn} == norms
    assert {case.model.dtype for case in drawn} == dtypes


def test_a_single_stage_is_not_clipped():
    assert min(case.num_stages for case in _drawn(EVERYTHING)) == 2


@pytest.mark.parametrize("claim", [ClippingClaim(norms=()), ClippingClaim(dtypes=("float16",))])
def test_without_a_norm_or_a_dtype_nothing_is_claimed(claim):
    assert is_claimed(Focus.CLIPPED, GPIPE, EVERYTHING)
    assert not is_claimed(Focus.CLIPPED, GPIPE, replace(EVERYTHING, clipping=claim))
