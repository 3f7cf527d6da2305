"""The gate as a CI job calls it: files in, exit code out."""

import json

import msgspec
import pytest

from pipeconform.report.result import Control, read_result, write_result
from tests.report.conftest import make

__all__ = ["make"]


@pytest.fixture(autouse=True)
def _no_summary_of_a_job(monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def files(make, tmp_path):
    good = make.result(make.cell("TRN-4", "GPipe"))
    bad = make.result(make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe")))
    write_result(good, tmp_path / "good/result.json")
    write_result(bad, tmp_path / "bad/result.json")


def test_a_regression_stops_the_gate_and_a_fix_does_not(typed, files):
    assert typed("compare", "good", "bad/result.json")[0] == 1
    assert typed("compare", "bad", "good")[0] == 0


def test_the_command_that_replays_names_the_result_unless_it_is_at_its_default_place(
    typed, files, make, tmp_path
):
    line = "pipeconform replay TRN-4:GPipe:default:1f3a --impl torch"
    assert f"      {line} --result bad/result.json\n" in typed("compare", "good", "bad")[1]

    write_result(read_result(tmp_path / "bad"), tmp_path / "pipeconform-results/result.json")
    assert f"      {line}\n" in typed("compare", "good", "pipeconform-results")[1]


def test_what_is_no_longer_shown_is_replayed_from_the_old_result(typed, make, tmp_path):
    """The new one does not have its case."""
    control = Control(digest="d", requirement="TRN-3", status="failed", signature="scale")
    blocked = make.violation("TRN-4", "GPipe", control=control)
    wrong = make.violation("TRN-3", "GPipe", signature="scale")
    old = make.result(
        make.cell("TRN-3", "GPipe", wrong), make.cell("TRN-4", "GPipe", blocked, status="blocked")
    )
    write_result(old, tmp_path / "old/result.json")
    write_result(
        make.result(make.cell("TRN-3", "GPipe"), make.cell("TRN-4", "GPipe")), tmp_path / "new/result.json"
    )

    code, out, _ = typed("compare", "old", "new")

    assert code == 0
    assert "pipeconform replay TRN-4:GPipe:default:1f3a --impl torch --result old/result.json\n" in out


def test_json_is_the_only_thing_on_standard_output(typed, files):
    code, out, err = typed("compare", "good", "bad", "--format", "json")

    assert (code, err) == (1, "")
    assert json.loads(out)["changes"][0]["kind"] == "regressed"


def test_github_gets_a_summary_beside_the_annotations(typed, files, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    _, out, _ = typed("compare", "good", "bad", "--format", "github")

    assert out.startswith("::error ")
    assert (tmp_path / "summary.md").read_text().startswith("### pipeconform: blocked")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "damaged, not JSON"),
        (b"[]", "not a result file: Expected `object`, got `array`"),
        (b'{"format": 99}', "result format 99; this version reads"),
        (b'{"version": "1.0", "tests": []}', "result format None; this version reads"),
        (b'{"format": 2, "cells": []}', "not a result file"),
        (None, "cannot read"),
    ],
)
def test_a_file_that_is_no_result_is_named(typed, files, tmp_path, content, expected):
    if content is not None:
        (tmp_path / "strange.json").write_bytes(content)
    code, _, err = typed("compare", "good", "strange.json")

    assert code == 2
    assert expected in err
    assert "strange.json" in err
    assert err.count("\n") == 1


def test_a_result_of_the_older_format_is_read(typed, files, tmp_path):
    old = json.loads((tmp_path / "good/result.json").read_text()) | {"format": 1}
    for name in ("rules", "expectations"):
        old.pop(name)
    (tmp_path / "old.json").write_text(json.dumps(old))

    assert typed("compare", "old.json", "good")[0] == 0


def test_an_unknown_implementation_is_refused_before_anything_runs(typed, files):
    code, _, err = typed("compare", "good", "bad", "--impl", "torchy")

    assert code == 2
    assert "cannot read --impl 'torchy'" in err


@pytest.mark.parametrize(
    ("implementation", "kind", "blocked"),
    [("reference", "flaky", True), ("pipeconform.reference_impl.faults.scale:NotDivided", "regressed", True)],
)
def test_a_regression_is_settled_by_executing_its_case_again(
    typed, make, tmp_path, implementation, kind, blocked
):
    """What the reference does not show again was flaky; what the fault shows every time was none."""
    case = make.case(m=3)
    violation = make.violation("TRN-1", "GPipe", case, signature="gradient value")
    write_result(make.result(make.cell("TRN-1", "GPipe")), tmp_path / "old.json")
    write_result(make.result(make.cell("TRN-1", "GPipe", violation)), tmp_path / "new.json")
    code, out, _ = typed("compare", "old.json", "new.json", "--impl", implementation, "--format", "json")
    (change,) = msgspec.json.decode(out)["changes"]

    assert (change["kind"], code) == (kind, int(blocked))
    if kind == "flaky":
        assert change["detail"] == "executed again, its case showed the violation 0 of 3 times"
