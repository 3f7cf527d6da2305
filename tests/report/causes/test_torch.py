"""The causes of what a smoke run of torch 2.13 found: each is known, and no two are one.

The file is a result of `pipeconform run --impl torch --profile smoke` without the cells that are met, with at most two
violations of a kind, and with messages cut short.
"""

from pathlib import Path

import pytest

from pipeconform.report.causes import causes_of
from pipeconform.report.result import read_result

FOUND = Path(__file__).parent / "found/torch-2.13-smoke.json"


@pytest.fixture(scope="module")
def result():
    return read_result(FOUND)


def test_every_cause_is_known_and_no_finding_is_behind_two(result):
    causes = causes_of(result)

    assert [(cause.requirement, [entry.id for entry in cause.known]) for cause in causes] == [
        ("FWD-17", ["1", "2", "20", "50"]),
        ("SPL-1", ["7"]),
        ("TRN-4", ["3", "4"]),
        ("FWD-17", ["14"]),
        ("FWD-2", ["8"]),
        ("SCH-7", ["22"]),
        ("TRC-5", ["31"]),
        ("SPL-1", ["12"]),
        ("TRN-15", ["23"]),
        ("SPL-1", ["6"]),
        ("SCH-9", ["5"]),
        ("FWD-16", ["26"]),
        ("LIF-7", ["25"]),
        ("LIF-3", ["24"]),
        ("SCH-8", ["18"]),
        ("SPL-4", ["21"]),
        ("TRC-2", ["27"]),
        ("TRC-4", ["28"]),
    ]


def test_what_repeats_another_requirement_accuses_nothing(result):
    causes = {cause.requirement: cause.blocked_requirements for cause in causes_of(result) if cause.blocked}

    assert causes == {
        "FWD-17": ("DPC-2", "DPC-6", "DPC-9"),
        "SPL-1": ("TRN-8",),
        "SCH-9": ("LIF-1", "LIF-2"),
        "SCH-8": ("SCH-4", "SCH-5"),
    }


def test_without_the_findings_no_two_of_them_are_taken_for_one(result):
    """Kind, place and factor join nothing that has two reasons; they leave apart what only a reader can join."""
    joined = [set(cause.requirements) for cause in causes_of(result, known=()) if len(cause.requirements) > 1]
    known = {entry.id: set(entry.requirements) for cause in causes_of(result) for entry in cause.known}

    assert all(any(names <= held for held in known.values()) for names in joined)
    assert len(causes_of(result, known=())) == 26
