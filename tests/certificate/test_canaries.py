"""Faults are tried one after the other, and told; the trials themselves are those of test_rerun."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from pipeconform.campaign.options import Options
from pipeconform.certificate.canaries import faults_of, one_each, run_canaries

ROWS = ("TRN-7", "COM-1", "DPW-1")


@pytest.fixture
def tried(monkeypatch):
    """What is tried, and on which processes; the second fault is not detected."""
    seen = []

    def try_fault(fault, pools):
        seen.append((fault.name, pools))
        return SimpleNamespace(detected=len(seen) != 2, shown=(f"failed: {fault.name}",), seconds=0.5)

    place = SimpleNamespace(pools=lambda _: nullcontext("pools"))
    monkeypatch.setattr("pipeconform.certificate.canaries.try_fault", try_fault)
    monkeypatch.setattr("pipeconform.certificate.canaries.places_of", lambda options, stack: place)
    return seen


def test_every_fault_is_announced_tried_and_told_in_turn(tried):
    chosen, events = faults_of(ROWS)[:3], []
    canaries = run_canaries(
        chosen,
        options=Options(implementation="reference"),
        shard="1/2",
        run_id="f" * 32,
        begin=lambda fault: events.append(("begin", fault.name)),
        tell=lambda canary: events.append(("tell", canary.fault)),
    )

    names = [fault.name for fault in chosen]
    assert tried == [(name, "pools") for name in names]
    assert events == [(what, name) for name in names for what in ("begin", "tell")]
    assert [one.fault for one in canaries] == names
    assert [one.detected for one in canaries] == [True, False, True]
    for fault, one in zip(chosen, canaries, strict=True):
        assert (one.requirement, one.schedule, one.expected) == (
            fault.requirement,
            fault.schedule,
            fault.expected_status,
        )
        assert (one.shown, one.seconds, one.shard, one.run_id) == (
            (f"failed: {fault.name}",),
            0.5,
            "1/2",
            "f" * 32,
        )


def test_processes_are_ended_whatever_happens(monkeypatch):
    ended = []

    @contextmanager
    def pools(_):
        try:
            yield "pools"
        finally:
            ended.append(True)

    def fails(fault, pools):
        raise RuntimeError("lost")

    monkeypatch.setattr("pipeconform.certificate.canaries.places_of", lambda *_: SimpleNamespace(pools=pools))
    monkeypatch.setattr("pipeconform.certificate.canaries.try_fault", fails)

    with pytest.raises(RuntimeError, match="lost"):
        run_canaries(faults_of(["TRN-7"]), options=Options(implementation="reference"))
    assert ended == [True]


def test_faults_are_those_of_the_requirements_of_pipelines_and_of_wrappers():
    for row in ROWS:
        found = faults_of([row])
        assert found
        assert {fault.requirement for fault in found} == {row}
    assert set(faults_of(ROWS)) == {fault for row in ROWS for fault in faults_of([row])}
    assert faults_of([]) == ()


def test_of_several_faults_with_one_requirement_and_status_the_first_is_chosen():
    every = faults_of(ROWS)
    chosen = one_each(every)
    keys = [(fault.requirement, fault.expected_status) for fault in every]

    assert [(fault.requirement, fault.expected_status) for fault in chosen] == list(dict.fromkeys(keys))
    assert [fault.name for fault in chosen] == [every[keys.index(key)].name for key in dict.fromkeys(keys)]
