"""Faults that are tried, on runners that answer what a test says: no process is started."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from pipeconform.reference_impl.faults.fault import Fault

from pipeconform.campaign import trial
from pipeconform.campaign.trial import MOST_EXECUTIONS, faults, try_fault
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status

FAULT = Fault(
    name="late",
    summary="It comes late.",
    requirement="TRN-1",
    schedule="GPipe",
    reference="engine:Late",
    tells=r"stage \d is late",
)


class Answers:
    """A runner whose executions show one outcome after the other, the last one for ever."""

    def __init__(self, shown: Iterable[tuple[Outcome, ...]], *, repetitions: int = 0) -> None:
        self.shown, self.again, self.executed = list(shown), repetitions, []

    def execute(self, case, requirements):
        self.executed.append((case, [one.id for one in requirements]))
        return len(self.executed) - 1

    def judged(self, row, case, execution):
        return SimpleNamespace(outcomes=self.shown[min(execution, len(self.shown) - 1)])

    def repetitions(self, row, execution, *, anew):
        assert anew
        return self.again


@pytest.fixture
def tried(monkeypatch):
    """Try a fault; every execution shows the outcomes that are given, in order."""

    def one(fault, *shown, cases=range(1000), repetitions=0, device="cpu"):
        runner = Answers(shown, repetitions=repetitions)
        monkeypatch.setattr(trial, "describe", lambda pools, reference: reference)
        monkeypatch.setattr(trial, "runner_of", lambda description, *, implementation, pools: runner)
        monkeypatch.setattr(trial, "cases_of", lambda fault, description: iter(cases))
        pools = SimpleNamespace(devices=SimpleNamespace(device_type=device))
        return try_fault(fault, pools), runner

    return one


def outcome(status: Status, message: str, *, kind: str = "output value", **where: int) -> Outcome:
    return Outcome(status, Finding(kind=kind, message=message, **where))


LATE = outcome(Status.FAILED, "stage 1 is late", rank=1)


def test_it_is_caught_by_the_first_case_that_shows_its_status_and_its_words(tried):
    other = outcome(Status.FAILED, "stage 1 is early", kind="another")
    worse = outcome(Status.HUNG, "stage 1 is late", kind="hang")
    found, runner = tried(FAULT, (), (other, worse), (other, LATE), repetitions=1)

    assert found.detected
    assert (found.case, found.executions) == (2, 6)  # each of three cases once, and once more
    assert found.message == f"stage 1 is late ({LATE.finding.where()})"
    assert found.shown == ("failed: another", "hung: hang", "failed: output value")
    assert runner.executed == [(case, ["TRN-1"]) for case in range(3)]


def test_where_a_finding_has_no_place_its_message_stands_alone(tried):
    found, _ = tried(FAULT, (outcome(Status.FAILED, "stage 0 is late"),))
    assert found.message == "stage 0 is late"


def test_it_is_not_detected_where_nothing_is_left_to_try(tried):
    found, _ = tried(FAULT, (), cases=range(3))
    assert (found.detected, found.case, found.message, found.shown) == (False, None, "", ())
    assert found.executions == 3


@pytest.mark.parametrize("repetitions", [0, 3])
def test_the_executions_of_a_trial_are_bounded(tried, repetitions):
    found, runner = tried(FAULT, (), repetitions=repetitions)
    assert not found.detected
    assert found.executions == MOST_EXECUTIONS
    assert len(runner.executed) == MOST_EXECUTIONS // (1 + repetitions)


def test_a_hang_shows_it_only_where_the_fault_says_so_and_on_a_device(tried):
    hung = outcome(Status.HUNG, "no rank makes progress", kind="hang")
    assert not tried(FAULT, (hung,), cases=range(2), device="cuda")[0].detected
    assert not tried(_with(or_hangs=True), (hung,), cases=range(2))[0].detected
    found, _ = tried(_with(or_hangs=True), (hung,), device="cuda")
    assert found.detected
    assert found.message == "no rank makes progress"
    assert tried(_with(or_hangs=True), (LATE,), device="cuda")[0].detected
    assert not tried(
        _with(or_hangs=True), (outcome(Status.ERROR, "stage 1 is late"),), cases=range(2), device="cuda"
    )[0].detected


def _with(**changes: object) -> Fault:
    return dataclasses.replace(FAULT, **changes)


def test_faults_that_may_hang_are_about_messages():
    """A hang says little; what shows on all backends otherwise need not have it."""
    assert {name for name, one in faults().items() if one.or_hangs} == {
        "leftover-send",
        "leftover-receive",
        "longer-receive",
        "sends-cross",
        "tags-relied",
        "errors-swallowed",
    }
