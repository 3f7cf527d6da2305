"""Honest evidence is accepted, and each judgement compares as much of it as ever."""

from collections import Counter

import pytest

from tests.judge.counted import counted, remembered
from tests.judge.grid import EVIDENCE


@pytest.mark.parametrize("name", EVIDENCE)
def test_honest_evidence_is_accepted_and_as_much_of_it_compared_as_ever(name):
    assert counted(name) == remembered()[name], "if that is meant, run 'python -m tests.judge.counted'"


def test_every_requirement_counts_what_it_compares():
    """One that compared nothing is no pass, so one that forgets to count would never pass."""
    numbers: Counter[str] = Counter()
    for found in remembered().values():
        numbers.update(found)

    assert remembered().keys() == EVIDENCE.keys()
    # LIF-5 counts where two executions are compared: tests/judge/test_lifecycle.py
    assert [requirement for requirement, number in numbers.items() if not number] == ["LIF-5"]
