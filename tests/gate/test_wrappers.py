"""A wrapper's results go through the gate as a pipeline's do: compared, expected, held against the file."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import BadExpectationsError
from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_text import render_comparison
from pipeconform.gate.expectations import read_expectations
from pipeconform.gate.proposal import propose, write_proposal
from pipeconform.gate.strict import problems
from pipeconform.report.result import Implementation, Result
from tests.report.conftest import make

__all__ = ["make"]

CASE = WrapperCase(ranks=3, module="normed")
TODAY = datetime.date(2026, 6, 1)


def _result(make, *, broken: bool, expected: str = "") -> Result:
    violation = make.violation("DPW-7", "Wrapper", signature="gradient differs", expected=expected)
    shown = (make.changed(violation, case=CASE, digest=CASE.digest),) if broken else ()
    cells = make.cell("DPW-7", "Wrapper", *shown, counts={"p=3,v=1": 4}), make.cell("DPW-1", "Wrapper")
    implementation = Implementation(reference="mine", name="mine", version="1", kind="wrapper")
    return make.changed(make.result(*cells), implementation=implementation)


def test_what_a_wrapper_no_longer_meets_is_a_regression(make) -> None:
    found = compare(_result(make, broken=False), _result(make, broken=True))

    assert [(one.kind, one.requirement) for one in found.changes] == [("regressed", "DPW-7")]
    assert found.unchanged == 1
    told = render_comparison(found, "text")
    assert "  DPW-7: passed → failed, failed: gradient differs" in told
    assert "Wrapper:" not in told.replace("DPW-7:Wrapper:default", "")


def test_what_is_proposed_for_a_wrapper_is_read_again_and_lets_it_pass(make, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    proposal = propose(
        _result(make, broken=True),
        reason="known",
        issue="https://example.org/1",
        owner="me",
        expires=datetime.date(2027, 1, 1),
    )
    write_proposal(proposal, path)
    file = read_expectations(path)
    (entry,) = file.entries

    assert [stored.case for stored in entry.stored] == [CASE]
    assert entry.is_about(requirement="DPW-7", schedule="Wrapper", device="cpu", torch="2.13.0")
    held = _result(make, broken=True, expected=entry.label)
    assert problems(file, held, today=TODAY) == ()
    (problem,) = problems(file, _result(make, broken=False), today=TODAY)
    assert "unexpected pass: DPW-7" in problem
    again = propose(held, file)
    assert 'requirement = "DPW-7"' in again.text
    assert again.cases == {}


def test_a_wrappers_case_that_is_damaged_is_refused_with_its_line(make, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    proposal = propose(
        _result(make, broken=True), reason="r", issue="https://example.org/1", owner="me", expires=TODAY
    )
    write_proposal(proposal, path)
    (name,) = proposal.cases
    (tmp_path / name).write_text('{"ranks": 0}')

    with pytest.raises(BadExpectationsError, match=r"e\.toml:\d+: .*at least one rank"):
        read_expectations(path)
