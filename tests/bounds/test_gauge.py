import math

import torch

from pipeconform.bounds.gauge import Gauge
from pipeconform.judge.evidence import Numbers
from pipeconform.observe.array import Array


def test_the_largest_ratio_is_kept():
    gauge = Gauge()
    assert gauge.worst is None

    for ratio in (0.25, 0.5, 0.125, math.inf, math.nan):
        gauge.note(ratio)

    assert gauge.worst == 0.5


class _Evidence:
    """Levels stand for their references."""

    thorough = True
    overflows = False

    def __init__(self):
        self.gauge = Gauge()

    def bounded(self, level):
        return level

    def compared(self):
        self.gauge.count()


def differs(actual, *, bounds):
    evidence = _Evidence()
    value, bound = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1e-15, 1e-15])
    shown = torch.tensor(actual, dtype=torch.float64)
    found = Numbers(evidence=evidence).differs(
        Array.of(value), Array.of(shown), lambda level: Array.of(bound) if level in bounds else None
    )
    return found, evidence.gauge.worst


def test_equal_values_need_no_bound():
    assert differs([1.0, 2.0], bounds={"running"}) == (None, None)


def test_what_is_accepted_tells_how_near_it_came():
    found, worst = differs([1.0, 2.0 - 2**-51], bounds={"running"})

    assert found is None
    assert 0.4 < worst < 0.5


def test_what_is_not_accepted_tells_nothing():
    found, worst = differs([1.0, 2.1], bounds={"running"})

    assert found.kind == "value"
    assert worst is None
