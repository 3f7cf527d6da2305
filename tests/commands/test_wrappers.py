"""A data-parallel wrapper is judged, replayed, exported, compared, listed and refused by the usual commands."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import pytest

from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.export.question import MEMBER, Question, read_question
from pipeconform.report.result import read_result, write_result
from pipeconform.wrapper import WrapOptions
from tests.report.conftest import make

__all__ = ["make"]

FAULT = "pipeconform.reference_impl.faults.faulty_wrappers:Summed"


@pytest.mark.slow
def test_a_wrong_wrapper_is_shown_made_small_and_replayed(typed, tmp_path) -> None:
    code, out, _ = typed(
        "run", "--impl", FAULT, "--requirements", "DPW-1,DPW-3", "--out", "found", "--profile", "smoke"
    )
    result = read_result(tmp_path / "found" / "result.json")
    broken, met = result.cells

    assert code == 1
    assert "1. DPW-1 The mean gradient (MUST): FAIL\n" in out
    assert "under Wrapper" not in out
    assert (broken.requirement, broken.status, met.status) == ("DPW-1", "failed", "passed")
    assert set(result.rules) == {"DPW-1", "DPW-3"}
    assert (result.implementation.kind, result.implementation.source) == ("wrapper", "wrapper_adapter.py")
    assert result.environment.variables["default"]
    violation = broken.violations[0]
    assert violation.confirmed
    assert violation.id.startswith("DPW-1:Wrapper:default:")
    assert violation.case.ranks == 2

    suites = ET.parse(tmp_path / "found" / "junit.xml").getroot()
    assert {case.get("name") for case in suites.iter("testcase") if case.find("failure") is not None} == {
        "DPW-1 The mean gradient"
    }
    assert "The mean gradient" in (tmp_path / "found" / "report.html").read_text()

    stored = ("replay", violation.id, "--result", "found")
    code, out, _ = typed(*stored, "--impl", "reference-wrapper")
    assert (code, out.splitlines()[-1]) == (0, "FIXED: DPW-1 met")
    code, out, _ = typed(*stored, "--impl", FAULT)
    assert code == 1
    assert "REPRODUCED:\nDPW-1 failed: gradient differs" in out

    # what was found before is executed first in the next run, and reported as it is
    code, _, _ = typed(
        "run", "--impl", FAULT, "--requirements", "DPW-1", "--out", "found", "-q", "--profile", "smoke"
    )
    again = read_result(tmp_path / "found" / "result.json").cells[0].violations[0]
    assert code == 1
    assert (again.digest, again.shrink_executions) == (violation.digest, 0)

    case = tmp_path / "case.json"
    case.write_text(json.dumps({"ranks": 3}))
    code, out, _ = typed("replay", "case.json", "--impl", "reference-wrapper", "--requirement", "DPW-1")
    assert (code, out.splitlines()[-1]) == (0, "FIXED: DPW-1 met")


def test_what_says_nothing_about_a_wrapper_is_refused(typed) -> None:
    for options, words in (
        (("--schedules", "GPipe"), "has no schedules"),
        (("--requirements", "TRN"), "TRN does not apply: the implementation is a wrapper"),
        (("--device", "abacus"), "--device abacus: torch does not support it on this machine"),
    ):
        code, _, err = typed("run", "--impl", "reference-wrapper", *options)
        assert code == 2
        assert words in err


def test_a_pipeline_is_no_wrapper(typed) -> None:
    code, _, err = typed("run", "--impl", "reference", "--requirements", "DPW-1")

    assert code == 2
    assert "DPW-1 does not apply: the implementation is a pipeline" in err


def test_the_chapter_is_listed_and_shown(typed) -> None:
    code, out, _ = typed("list")
    assert code == 0
    assert "DPW  Data-parallel wrappers" in out

    code, out, _ = typed("list", "--impl", "torch-fully-shard")
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  DPW-")}
    assert code == 0
    assert rows["DPW-1"].endswith("judged")
    assert rows["DPW-19"].endswith("not claimed: join")
    assert "TRN-1" not in out

    code, out, _ = typed("show", "dpw-19")
    assert code == 0
    assert "Needs      the feature 'join'" in out


@pytest.fixture
def stored(make, tmp_path):
    """A result without a violation, and one with DDP's of DPW-24."""
    case = WrapperCase(form="dataclass", options=WrapOptions(static_graph=True), steps=(Step(),))
    violation = make.violation("DPW-24", "Wrapper", make.case(), signature="gradient differs")
    violation = make.changed(
        violation, id="DPW-24:Wrapper:default:1f3a", case=case, digest=case.digest, message="differs here"
    )
    write_result(make.result(make.cell("DPW-24", "Wrapper")), tmp_path / "met.json")
    write_result(make.result(make.cell("DPW-24", "Wrapper", violation)), tmp_path / "broken.json")
    return violation.id


def asked_by(archive: Path) -> Question:
    with zipfile.ZipFile(archive) as opened:
        return read_question(opened.read(MEMBER))


def test_a_violation_is_written_as_a_program(typed, tmp_path, stored) -> None:
    asked = ("replay", stored, "--result", "broken.json", "--script", "shown.py")
    code, out, err = typed(*asked, "--impl", "torch-ddp")
    text, question = (tmp_path / "shown.py").read_text(), asked_by(tmp_path / "shown.zip")

    assert (code, err) == (0, "")
    assert out == "wrote shown.py and shown.zip; run it with: python shown.py\n"
    assert text.startswith('"""torch DDP ')
    assert ": DPW-24 failed: gradient differs\ndiffers here\n" in text
    assert question.requirements == ("DPW-24",)
    assert question.sought is not None

    code, _, err = typed(*asked, "--impl", "reference")
    assert code == 2
    assert "reference is a pipeline" in err


def test_a_bare_case_is_written_with_every_requirement_that_speaks_of_it(typed, tmp_path) -> None:
    (tmp_path / "case.json").write_text(json.dumps({"ranks": 3}))
    code, _, _ = typed("replay", "case.json", "--impl", "torch-ddp", "--script", "shown.py")
    judges = asked_by(tmp_path / "shown.zip").requirements

    assert code == 0
    assert "DPW-1" in judges
    assert "DPW-35" not in judges


@pytest.mark.parametrize(
    ("old", "new", "implementation", "kind"),
    [
        ("met.json", "broken.json", "reference-wrapper", "flaky"),
        pytest.param("met.json", "broken.json", "torch-ddp", "regressed", marks=pytest.mark.slow),
        pytest.param("broken.json", "met.json", "reference-wrapper", "fixed", marks=pytest.mark.slow),
    ],
)
def test_a_change_is_settled_by_executing_its_case_again(
    typed, stored, old: str, new: str, implementation: str, kind: str
) -> None:
    code, out, _ = typed("compare", old, new, "--impl", implementation, "--format", "json")
    (change,) = json.loads(out)["changes"]

    assert (change["kind"], code) == (kind, int(kind != "fixed"))
