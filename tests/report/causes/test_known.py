"""Files of known causes: the package's own agrees with the documentation; wrong ones are refused with their line."""

import re
from pathlib import Path

import pytest

from pipeconform.errors import BadKnownError
from pipeconform.report.causes import causes_of, read_known, shipped
from pipeconform.report.causes.known import entry_of, known_for

ROOT = Path(__file__).parents[3]
ENTRY = """\
format = 1

[[known]]
id = "7"
title = "gradients are lost"
link = "https://example.org/7"
requirements = ["trn-1"]
signature = "^gradient"
"""
UNREPORTED = {"17", "19", "70", "E3", "E4"}
"""Findings that no requirement reports when an implementation is judged, besides those whose row says so; E3 and E4 are
of releases that are judged by docs/engines/compare.py only."""


def rows():
    """By id, the requirements, and the files and links of each finding."""
    text = (ROOT / "docs/findings/README.md").read_text("utf-8")
    found = re.findall(r"^\| ([EW]?\d+) \| ([^|]*) \| .*$", text, re.MULTILINE)
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    return {name: (requirements, lines[name]) for name, requirements in found}


def written(tmp_path, text):
    path = tmp_path / "known.toml"
    path.write_text(text, "utf-8")
    return path


def test_the_shipped_files_have_every_finding_that_the_suite_reports():
    reported = {name for name, (requirements, _) in rows().items() if not requirements.startswith("none")}

    assert reported - UNREPORTED <= {entry.id for entry in shipped()} <= set(rows())


@pytest.mark.parametrize("entry", shipped(), ids=lambda entry: entry.id)
def test_a_shipped_entry_agrees_with_the_documentation(entry):
    requirements, line = rows()[entry.id]

    assert (ROOT / entry.link).is_file()
    assert Path(entry.link).name in line
    assert entry.thread in line
    named = set(re.findall(r"[A-Z]{3}-\d+", requirements)) or set(entry.requirements)
    assert named & set(entry.requirements)


def test_entries_are_about_one_implementation(make):
    assert [entry.id for entry in known_for(["torch FSDP"])] == ["75"]
    assert known_for(["toy GPipe"]) == ()


def test_an_implementation_s_own_findings_come_before_those_of_what_it_is_built_on():
    """What both may explain is its own: FWD-22's wrong values are AutoModel's, not torch's."""
    entries = known_for(["nemo-automodel", "torch.distributed.pipelining"])
    names = [entry.implementation for entry in entries]
    explaining = [entry.id for entry in entries if "FWD-22" in entry.requirements]

    assert names == sorted(names, key="torch.distributed.pipelining".__eq__)
    assert explaining == ["E76", "90"]


def test_what_is_known_of_an_implementation_is_known_of_those_that_are_built_on_it(make):
    violation = make.violation("TRN-4", "GPipe", signature="gradient of earlier steps divided by m")
    made = make.result(make.cell("TRN-4", "GPipe", violation))
    theirs = make.changed(made.implementation, name="a fork", built_on="torch.distributed.pipelining")
    alone = make.changed(theirs, built_on="")

    def known(implementation):
        (cause,) = causes_of(make.changed(made, implementation=implementation))
        return [entry.id for entry in cause.known]

    assert known(theirs) == ["3"]
    assert known(alone) == []


def test_a_finding_is_known_by_requirement_status_signature_and_schedule(tmp_path, make):
    text = ENTRY + 'status = "failed"\nschedules = ["GPipe"]\n'
    entries = read_known(written(tmp_path, text))

    def found(requirement="TRN-1", schedule="GPipe", **fields):
        violation = make.violation(requirement, schedule, **({"signature": "gradient value"} | fields))
        return entry_of(make.cell(requirement, schedule, violation), violation, entries)

    assert found() is entries[0]
    assert found(signature="a gradient") is None
    assert found(status="hung") is None
    assert found(schedule="1F1B") is None
    assert found(requirement="TRN-2") is None


@pytest.mark.parametrize("said", ["input tensor has to be contiguous", "Tensors must be contiguous"])
def test_a_gradient_that_cannot_be_sent_is_known_by_gloos_words_and_by_those_of_others(make, said):
    violation = make.violation("TRN-15", "GPipe", status="error", signature=f"raised RuntimeError: {said}")
    entry = entry_of(
        make.cell("TRN-15", "GPipe", violation), violation, known_for(["torch.distributed.pipelining"])
    )
    assert entry.id == "23"


def test_a_file_is_read_with_ids_of_requirements_in_their_own_form(tmp_path):
    (entry,) = read_known(written(tmp_path, ENTRY))

    assert (entry.requirements, entry.thread, entry.implementation) == (("TRN-1",), "", "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (ENTRY.replace("format = 1", "format = 2"), ":1: format 2; this version reads 'format = 1'"),
        (ENTRY.replace("[[known]]", "[[expect]]"), ":3: 'expect' is unknown; write entries as [[known]]"),
        (
            ENTRY.replace('title = "gradients are lost"\n', ""),
            ":3: the entry lacks title; every entry needs id, title",
        ),
        (ENTRY + 'status = "flaky"\n', ":9: status 'flaky' is not one of failed, hung, crashed, error"),
        (ENTRY + 'thread = "#7"\n', ":9: thread '#7' is not a link; expected https://…"),
        (ENTRY.replace("https://example.org/7", "the page"), ":6: link 'the page' is neither a link"),
        (ENTRY.replace("trn-1", "TRN-99"), ":7: unknown requirement 'TRN-99'; nearest"),
        (ENTRY.replace("^gradient", "(gradient"), ":8: '(gradient' is not a regular expression"),
        (ENTRY.replace("^gradient", "x" * 2000), ":8: a pattern of more than 1000 characters"),
        (ENTRY + ENTRY.partition("\n\n")[2], ":9: the id '7' was taken on line 3"),
        (ENTRY + 'same_as = "8"\n', ":9: same_as '8' is not the id of an entry without a same_as"),
        (ENTRY + 'file = "x"\n', ":9: Object contains unknown field `file`"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, error):
    with pytest.raises(BadKnownError, match=re.escape(error)):
        read_known(written(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadKnownError, match="cannot read"):
        read_known(tmp_path / "none.toml")
