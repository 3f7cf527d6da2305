"""The benchmark of the controller, small: it measures what it says, and a few promises hold with 64 agents."""

import hashlib
import importlib
import sys
from pathlib import Path

import pytest

from tests import tenths

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
PAYLOADS = [b"a case" * 500, b"another" * 500]
ANSWERS = {hashlib.sha256(one).hexdigest(): [bytes([rank]) * 9000 for rank in range(4)] for one in PAYLOADS}


@pytest.fixture(scope="module")
def scale():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("controller_scale")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def measured(scale):
    """With 16 and with 64 agents."""
    return tuple(scale.measure(number, PAYLOADS, ANSWERS, rounds=4) for number in (16, 64))


@pytest.mark.slow
def test_every_agent_gets_the_same_number_of_cases(measured):
    assert [(one.fewest, one.most) for one in measured] == [(4, 4), (4, 4)]


@tenths.long
def test_worlds_that_are_formed_one_after_another_use_all_agents(measured):
    assert [one.rotated for one in measured] == [16, 64]


@tenths.long
def test_a_case_costs_the_controller_no_more_when_there_are_more_agents(measured):
    few, many = measured

    assert many.small_cpu < 3 * few.small_cpu
    assert many.large_cpu / 64 < 3 * few.large_cpu / 16


@tenths.long
def test_an_agent_costs_little_memory(measured):
    assert measured[1].memory_peak_per_agent < 256 << 10


@tenths.long
def test_a_lost_agent_of_many_is_told_of_at_once_and_its_return_makes_the_world_whole(measured):
    assert measured[1].lost < 10
    assert measured[1].whole < 20


def test_pulses_of_ten_thousand_agents_are_no_more_than_a_controller_hears():
    from pipeconform.attach.crew import pulse_for

    assert pulse_for(4) == pulse_for(500) == 0.1
    assert 10_000 / pulse_for(10_000) == 5000
