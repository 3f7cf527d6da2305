"""Annotations in the form that GitHub reads, and a summary whose Markdown nothing can break."""

import re

import msgspec
import pytest

from pipeconform.report.causes import causes_of
from pipeconform.report.causes.known import Known
from pipeconform.report.github import job_summary, workflow_command, workflow_commands
from pipeconform.report.origin import Origin, Origins
from pipeconform.report.result import Control, Expectations
from tests.report.conftest import make

__all__ = ["make"]

COMMAND = re.compile(r"::(error|warning|notice) (?:file=([^,:]+),line=(\d+),)?title=([^,:]*)::([^\n\r]*)")
KNOWN = Known(
    id="7",
    title="a|b",
    link="https://example.org/7",
    requirements=("FWD-1",),
    signature="^output",
    file="k.toml",
)


@pytest.fixture
def origins(tmp_path):
    (tmp_path / "mine.py").write_text("\nclass Mine: ...\n")
    return Origins(f"{tmp_path}/mine.py:Mine", root=tmp_path)


def commands(result, origins, **others):
    lines = list(workflow_commands(result, causes_of(result, known=[KNOWN]), origins=origins, **others))
    found = [COMMAND.fullmatch(line) for line in lines]
    assert all(found), lines
    return [one.groups() for one in found]


def test_a_command_escapes_what_would_end_it():
    line = workflow_command("error", "100%\nnext", title="a, b: c", origin=Origin(file="a,b.py", line=3))

    assert line == "::error file=a%2Cb.py,line=3,title=a%2C b%3A c::100%25%0Anext"


def test_every_cause_is_an_error_at_its_line_and_the_verdict_comes_last(make, origins):
    result = make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("FWD-1", "1F1B", make.violation("FWD-1", "1F1B")),
        make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", signature="odd", expected="e:3")),
    )
    cause, verdict = commands(result, origins)

    assert cause[:4] == ("error", "mine.py", "2", "FWD-1 Outputs%3A output value")
    assert cause[4].split("%0A") == [
        "silently wrong under GPipe, 1F1B",
        "the output of microbatch 0 is not the reference's (step 0, rank 1, microbatch 0)",
        "known as finding 7: a|b (https://example.org/7)",
        "pipeconform replay FWD-1:GPipe:default:1f3a --impl torch",
    ]
    assert verdict[0] == "error"
    assert verdict[4].startswith("toy GPipe 1.0 violates 1 of ")


def test_a_run_that_meets_all_is_a_notice(make, origins):
    ((severity, *_, text),) = commands(make.result(make.cell("FWD-1", "GPipe")), origins)

    assert (severity, text) == ("notice", "toy GPipe 1.0 meets the one judged requirement")


def test_a_wrong_line_of_the_expectations_is_an_error_there(make, origins):
    result = make.result(make.cell("FWD-1", "GPipe"))
    file = Expectations(file="e.toml", digest="", entries=1, problems=("e.toml:5: unexpected pass: FWD-1",))
    result = msgspec.structs.replace(result, expectations=file)

    assert commands(result, origins, expectations="ci/e.toml")[0] == (
        "error", "ci/e.toml", "5", "pipeconform%3A expectations", "unexpected pass: FWD-1"
    )  # fmt: skip
    assert commands(result, origins)[0][1:] == (
        None, None, "pipeconform%3A expectations", "e.toml:5: unexpected pass: FWD-1"
    )  # fmt: skip


def test_no_more_errors_are_printed_than_github_shows(make, origins):
    cells = [
        make.cell(f"FWD-{n}", "GPipe", make.violation(f"FWD-{n}", "GPipe", signature=f"wrong {'x' * n}"))
        for n in range(1, 14)
    ]
    found = commands(make.result(*cells), origins)

    assert [one[0] for one in found] == ["error"] * 10 + ["warning", "error"]
    assert found[10][4] == "and 3 more; the job's summary and the report list all"


def test_a_summary_has_the_verdict_the_causes_and_the_table(make):
    control = Control(digest="d", requirement="FWD-1", status="failed", signature="output value")
    result = make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("FWD-2", "1F1B", make.violation("FWD-2", "1F1B", signature="odd", expected="e:3")),
        make.cell("DPC-6", "GPipe", make.violation("DPC-6", "GPipe", control=control), status="blocked"),
        make.cell("FWD-9", "GPipe", status="not_claimed", judgements=0),
    )
    lines = job_summary(result, causes_of(result, known=[KNOWN])).splitlines()

    assert lines[0].startswith("### pipeconform: toy GPipe 1.0 violates 1 of ")
    assert (
        r"| **FWD-1 Outputs** | output value | GPipe | silently wrong | [finding 7: a\|b](https://example.org/7) |"
        in lines
    )
    assert "| **FWD-2 Order and length of the merged output** | odd | 1F1B | expected |  |" in lines
    assert "blocked: DPC-6 under GPipe (by FWD-1)  " in lines
    assert "| requirement | GPipe | 1F1B |" in lines
    assert "| FWD-1 Outputs | **FAIL** |  |" in lines
    assert "| FWD-2 Order and length of the merged output |  | known |" in lines
    assert "| DPC-6 Replicas that are late | block |  |" in lines
    assert "1 more was judged under no schedule." in lines


def test_nothing_that_an_implementation_says_is_markup(make):
    hostile = "<img src=x>|`a`*b*\n# [l](javascript:x)"
    result = make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe", signature=hostile)))
    text = job_summary(result, causes_of(result, known=[]))

    assert r"&lt;img src=x>\|\`a\`\*b\*\n# \[l\](javascript:x)".replace("\\n", r"\\n") in text
    tables = [line for line in text.splitlines() if line.startswith("| **FWD-1")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in tables] == [6]
