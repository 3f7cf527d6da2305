"""A sample of a package is executed again on a real implementation; what comes out otherwise is a doubt."""

import dataclasses
import random

import msgspec
import pytest
from pipeconform.reference_impl import faults

from pipeconform.campaign.options import Options
from pipeconform.certificate.canaries import faults_of, run_canaries
from pipeconform.certificate.rerun import sample
from pipeconform.replication.rejudge import Question, rejudge

FAULT = "pipeconform.reference_impl.faults.wire:RoundedToBfloat16"


def test_a_sample_is_drawn_from_passes_and_from_violations(contents, make):
    violation = make.violation("FWD-1", "GPipe")
    first, *others = contents.result.cells
    failed = msgspec.structs.replace(first, status="failed", violations=(violation,))
    result = msgspec.structs.replace(contents.result, cells=(failed, *others))
    drawn = sample(msgspec.structs.replace(contents, result=result), 10_000, rng=random.Random(0))

    expected = [one.expected for one in drawn if one.expected is not None]
    assert expected == [("failed", "output value")]
    passed = sum(cell.distinct_cases for cell in others)
    assert len(drawn) == passed + 1


def test_a_violation_that_is_not_confirmed_is_not_held_against_anybody(contents, make):
    violation = make.violation("FWD-1", "GPipe", confirmed=False)
    cells = (msgspec.structs.replace(contents.result.cells[0], status="flaky", violations=(violation,)),)
    contents = msgspec.structs.replace(contents, result=msgspec.structs.replace(contents.result, cells=cells))

    assert sample(contents, 10, rng=random.Random(0)) == ()


def test_equal_seeds_draw_equal_samples(contents):
    one, same, other = (sample(contents, 5, rng=random.Random(seed)) for seed in (1, 1, 2))

    assert one == same
    assert one != other


@pytest.mark.parametrize(("implementation", "times"), [("reference", 0), (FAULT, 2)])
def test_a_case_is_judged_as_often_as_asked(make, implementation, times):
    question = Question(requirement="FWD-1", variant="default", case=make.case())
    (again,) = rejudge([question], options=Options(implementation=implementation), times=2)

    assert len(again.shown) == 2
    shown = [status for one in again.shown for status, _ in one]
    assert shown.count("failed") == times


def test_canaries_of_a_requirement_are_detected_here():
    begun, told = [], []
    canaries = run_canaries(
        faults_of(["TRN-7"]),
        options=Options(implementation="reference"),
        shard="1/2",
        begin=begun.append,
        tell=told.append,
    )

    assert canaries
    assert told == list(canaries)
    assert [fault.name for fault in begun] == [one.fault for one in canaries]
    assert {one.requirement for one in canaries} == {"TRN-7"}
    assert all(one.detected and one.shown and one.shard == "1/2" for one in canaries)


def test_a_canary_that_sings_no_more_is_told(monkeypatch):
    """A fault that shows as another status than it must is not detected."""
    fault = faults.FAULTS["inputs-forgotten"]
    changed = {"inputs-forgotten": dataclasses.replace(fault, expected_status="hung")}
    monkeypatch.setattr(faults, "FAULTS", changed)
    (canary,) = run_canaries(faults_of(["TRN-7"]), options=Options(implementation="reference"))

    assert not canary.detected
    assert any(text.startswith("failed: ") for text in canary.shown)
