"""junit.xml as GitLab and GitHub read it: one test case for each cell, with the attributes that they render."""

import xml.etree.ElementTree as ET

import msgspec
import pytest

from pipeconform.report.causes import causes_of
from pipeconform.report.causes.known import Known
from pipeconform.report.junit import junit
from pipeconform.report.origin import Origins
from pipeconform.report.result import Control, Expectations
from tests.report.conftest import make

__all__ = ["make"]

COUNTS = {"tests", "failures", "errors", "skipped"}
CASE = {"name", "classname", "file", "line", "time"}
"""Attributes of a test case that the readers of the format agree on."""
KNOWN = Known(
    id="7",
    title="outputs are lost",
    link="https://example.org/7",
    requirements=("FWD-1",),
    signature="^output value$",
    file="known.toml",
)


@pytest.fixture
def result(make):
    blocker = Control(digest="d", requirement="FWD-1", status="failed", signature="output value")
    return make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("FWD-1", "1F1B"),
        make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", expected="e.toml:3")),
        make.cell("FWD-9", "GPipe", status="not_claimed", reason="toy GPipe does not claim it", judgements=0),
        make.cell(
            "TRN-1", "GPipe", status="error", reason="the harness failed: no memory\nmore", judgements=0
        ),
        make.cell(
            "DPC-6",
            "GPipe",
            make.violation("DPC-6", "GPipe", control=blocker),
            status="blocked",
            reason="blocked by FWD-1",
        ),
        make.cell("FWD-1", "GPipe", variant="threads", seconds=1.25),
    )


def read(result, **others):
    return ET.fromstring(junit(result, causes_of(result, known=[KNOWN]), **others))


def test_every_cell_is_a_case_and_the_counts_are_those_of_the_cases(result):
    suites = read(result)
    (suite,) = suites
    cases = suites.findall("testsuite/testcase")

    assert [case.get("name") for case in cases] == [
        "FWD-1 Outputs under GPipe",
        "FWD-1 Outputs under 1F1B",
        "FWD-2 Order and length of the merged output under GPipe",
        "FWD-9 Keyword arguments under GPipe",
        "TRN-1 Gradients under GPipe",
        "DPC-6 Replicas that are late under GPipe",
        "FWD-1 Outputs under GPipe (threads)",
    ]
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)
    assert {case.get("classname") for case in cases} == {"toy GPipe.FWD", "toy GPipe.TRN", "toy GPipe.DPC"}
    for element in (suites, suite):
        assert {name: int(element.get(name)) for name in COUNTS} == {
            "tests": 7, "failures": 1, "errors": 1, "skipped": 3
        }  # fmt: skip
        assert float(element.get("time")) == pytest.approx(4.25)


def test_elements_and_attributes_are_those_that_readers_of_the_format_know(result):
    suites = read(result)

    assert suites.tag == "testsuites"
    assert {child.tag for child in suites} == {"testsuite"}
    (suite,) = suites
    assert suite[0].tag == "properties"  # first, as the schema of Jenkins wants it
    assert {child.tag for child in suite[1:]} == {"testcase"}
    for case in suite.iter("testcase"):
        assert set(case.attrib) <= CASE
        assert {"name", "classname", "time"} <= set(case.attrib)
        assert len(case) <= 1
        for child in case:
            assert child.tag in {"failure", "error", "skipped"}
            assert set(child.attrib) == {"type", "message"}
            assert "\n" not in child.get("message")


def test_what_was_not_judged_is_skipped_and_says_why(result):
    skipped = {
        case.get("name").partition(" ")[0]: case.find("skipped").get("message")
        for case in read(result).iter("testcase")
        if case.find("skipped") is not None
    }

    assert skipped == {
        "FWD-2": "expected: failed: output value (e.toml:3)",
        "FWD-9": "not claimed: toy GPipe does not claim it",
        "DPC-6": "blocked by FWD-1",
    }


def test_only_what_an_entry_expects_is_called_expected(make):
    blocker = Control(digest="d", requirement="TRN-3", status="failed", signature="scale")
    cell = make.cell(
        "TRN-15",
        "GPipe",
        make.violation("TRN-15", "GPipe", status="error", signature="raised", expected="e.toml:56"),
        make.violation("TRN-15", "GPipe", signature="gradient value", control=blocker),
    )
    (skipped,) = read(make.result(cell)).iter("skipped")

    assert (
        skipped.get("message")
        == "expected: error: raised (e.toml:56); failed: gradient value blocked by TRN-3"
    )


def test_a_failure_says_what_is_wrong_what_it_is_known_as_and_how_to_replay_it(result):
    (failure,) = read(result).iter("failure")

    assert failure.get("message") == (
        "failed: output value: the output of microbatch 0 is not the reference's (step 0, rank 1, microbatch 0), "
        "known as finding 7"
    )
    assert failure.get("type") == "failed"
    assert "replay: pipeconform replay FWD-1:GPipe:default:1f3a --impl torch" in failure.text
    assert "cause 1 of 2: FWD-1 Outputs: output value under GPipe" in failure.text
    assert "known as finding 7: outputs are lost (https://example.org/7)" in failure.text


def test_what_could_not_be_judged_is_an_error(result):
    (error,) = read(result).iter("error")

    assert error.get("message") == "the harness failed: no memory"
    assert error.text == "the harness failed: no memory\nmore"


def test_the_suite_s_properties_say_what_was_judged_and_list_the_causes(result):
    found = [(one.get("name"), one.get("value")) for one in read(result).iter("property")]

    assert dict(found)["implementation"] == "toy GPipe 1.0"
    assert (
        "cause",
        "silently wrong: FWD-1 Outputs: output value under GPipe; known as finding 7: outputs are lost",
    ) in found
    assert [name for name, _ in found][-3:] == ["cause", "expected cause", "blocked"]


def test_cases_name_the_adapter_s_line_and_failures_the_engine_s_frame(make, tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/send.py").write_text("def send(): ...\n")
    (tmp_path / "mine.py").write_text("import os\n\n\nclass MyAdapter: ...\n")
    message = "rank 0 raised at\n  engine/send.py, line 7, in send\n    raise\n  torch/x.py, line 3, in y\n    raise"
    wrong = make.violation("FWD-1", "GPipe", status="error", message=message)
    result = make.result(make.cell("FWD-1", "GPipe", wrong), make.cell("FWD-1", "1F1B"))
    suites = read(result, origins=Origins(f"{tmp_path}/mine.py:MyAdapter", root=tmp_path))

    assert [(case.get("file"), case.get("line")) for case in suites.iter("testcase")] == [
        ("engine/send.py", "7"),
        ("mine.py", "4"),
    ]


def test_a_line_of_the_expectations_that_must_be_changed_is_a_failing_case_there(make):
    problems = (
        "e.toml:5: expired on 2026-06-30: fix TRN-4, or give a new date and the reason for it",
        "e.toml:44: unexpected pass: SCH-8 under GPipe no longer shows failed 'x', it passes; remove 'GPipe'",
        "e.toml:44: unexpected pass: SCH-8 under 1F1B no longer shows failed 'x', it passes; remove '1F1B'",
        "e.toml:50: matches nothing: there is no schedule 'GPip'; remove it from the entry",
    )
    file = Expectations(file="e.toml", digest="", entries=3, problems=problems)
    result = msgspec.structs.replace(make.result(make.cell("FWD-1", "GPipe")), expectations=file)
    suites = read(result, expectations="ci/e.toml")
    met, *cases = suites.iter("testcase")

    assert len(met) == 0
    assert [tuple(case.get(one) for one in ("classname", "name", "file", "line")) for case in cases] == [
        ("toy GPipe.expectations", "e.toml:5 TRN-4", "ci/e.toml", "5"),
        ("toy GPipe.expectations", "e.toml:44 SCH-8", "ci/e.toml", "44"),
        ("toy GPipe.expectations", "e.toml:50", "ci/e.toml", "50"),
    ]
    assert (suites.get("tests"), suites.get("failures")) == ("4", "3")
    assert cases[1].find("failure").get("message").endswith("remove 'GPipe' (and 1 more)")
    assert "SCH-8 under 1F1B" in cases[1].find("failure").text
    assert "file" not in next(case for case in read(result).iter("testcase") if len(case)).attrib


def test_no_text_of_an_implementation_can_break_the_file(make):
    hostile = 'x\x00\x1b[2J"]]><failure/>\ud800&\n'
    wrong = make.violation("FWD-1", "GPipe", signature=hostile, message=hostile, where=hostile)
    result = make.result(make.cell("FWD-1", "GPipe", wrong, reason=hostile))
    one = msgspec.structs.replace(result.implementation, name=hostile)
    suites = read(msgspec.structs.replace(result, implementation=one))

    assert len(list(suites.iter("failure"))) == 1
    assert r"\x1b[2J" in next(suites.iter("failure")).text
