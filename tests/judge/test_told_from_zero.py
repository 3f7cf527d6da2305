"""Gradients in 16 bits are judged: in most of the cases that are drawn, the oracle's bounds tell them from zeros."""

import pytest

from pipeconform.adapter import GradientScale
from pipeconform.bounds.numerics import tells_from_zero
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.focus import Focus, Limits
from pipeconform.oracle.full_model import reference
from tests.case.examples import EVERYTHING

LIMITS = Limits(capabilities=EVERYTHING, max_ranks=4)
NARROW = (
    Focus.DTYPE,
    Focus.AUTOCAST,
    Focus.MASTERS,
    Focus.CLIPPED_COPIES,
    Focus.SCALED,
    Focus.SCALED_AUTOCAST,
    Focus.CLIPPED_SCALED,
    Focus.MIXED_REPLICAS,
)


def told(case):
    """For every gradient after every training step that is finite and not zero: whether zeros would be refused."""
    found = reference(case, scale=GradientScale(at="loss"), bounds="running")
    for step in found.steps:
        for s, own in step.gradients.items():
            for name, value in own.items():
                if value is not None and value.tensor().isfinite().all() and value.tensor().any():
                    yield tells_from_zero(value, step.gradient_bounds[s][name])


@pytest.mark.parametrize("focus", NARROW)
def test_in_most_cases_the_gradients_in_16_bits_are_told_from_zeros(focus):
    corpus = Corpus(limits=LIMITS, schedule=EVERYTHING.schedules[0], focus=focus, seed=0, size=5)
    answers = [list(told(case)) for case in drawn(corpus)]
    judging = [answer for answer in answers if answer and sum(answer) > 0.8 * len(answer)]

    assert len(judging) > len(answers) / 2, [f"{sum(answer)} of {len(answer)}" for answer in answers]
