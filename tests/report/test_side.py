"""Tests of what tells results apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeconform.report.side import differing, facts, selection_words, side_of


@pytest.fixture
def one(make):
    result = make.result(make.cell("FWD-1", "GPipe"))
    return make.changed(result, run=make.changed(result.run, unrestricted=True))


def test_equal_results_differ_in_nothing_and_none_are_no_rows(one):
    assert differing([side_of(one), side_of(one)]) == {}
    assert differing([]) == {}


@pytest.mark.parametrize(
    ("part", "fields", "found"),
    [
        ("implementation", {"version": "2.0"}, {"release": ("toy GPipe 1.0", "toy GPipe 2.0")}),
        ("implementation", {"reference": "my.py:A"}, {"adapter": ("torch", "my.py:A")}),
        ("environment", {"torch": "2.12.0"}, {"torch": ("2.13.0", "2.12.0")}),
        ("environment", {"python": "3.14"}, {"python": ("3.11", "3.14")}),
        ("environment", {"device": "cuda"}, {"device": ("cpu", "cuda")}),
        ("run", {"seed": 7}, {"profile": ("smoke, seed 0", "smoke, seed 7")}),
        ("run", {"complete": False}, {"complete": ("yes", "no: stopped early")}),
        ("run", {"selection": "TRN,FWD-1"}, {"selection": ("all requirements", "requirements TRN, FWD-1")}),
        (
            "run",
            {"unrestricted": False, "schedules": ("GPipe",)},
            {"selection": ("all requirements", "all requirements under GPipe")},
        ),
    ],
)
def test_each_fact_tells_two_results_apart(make, one, part, fields, found):
    other = make.changed(one, **{part: make.changed(getattr(one, part), **fields)})

    assert differing([side_of(one), side_of(other)]) == found


def test_times_files_rules_and_sources_tell_apart(make, one):
    digests = (make.changed(one.implementation, source_digest=digest * 64) for digest in "ab")
    first, second = (make.changed(one, implementation=each) for each in digests)
    other = make.changed(second, created="2026-03-04T05:06:07+00:00", standard_version="0.0")
    found = differing([side_of(first, file=Path("a.json")), side_of(other, file=Path("b.json"))])

    assert found["run of"][1] == "2026-03-04 05:06 UTC"
    assert found["standard"][1] == "0.0"
    assert found["file"] == ("a.json", "b.json")
    assert found["adapter's digest"] == ("a" * 12, "b" * 12)


def test_a_third_result_counts(make, one):
    other = make.changed(one, run=make.changed(one.run, profile="core"))

    assert list(differing([side_of(one), side_of(one), side_of(other)])) == ["profile"]


def test_what_is_not_recorded_is_said(one):
    assert facts(side_of(one))["file"] == ""
    assert selection_words(side_of(one)) == "all requirements"
