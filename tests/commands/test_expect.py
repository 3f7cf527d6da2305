"""Expectations through a real implementation that is wrong on purpose: proposed, met, outlived, outgrown."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeconform.commands.init import skeleton
from tests import tenths
from tests.command_line import type_in

pytestmark = pytest.mark.xdist_group("commands/expect")  # they share a run
RUN = ("--profile", "smoke", "--ranks", "1-2", "--requirements", "TRN-1,FWD-1", "--schedules", "GPipe")
WRONG = ("losses[k] / len(losses) if self._mean else losses[k]", "losses[k]")
FILL = ("--reason", "known", "--issue", "https://example.org/7", "--owner", "us", "--expires", "2031-01-01")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A right and a wrong adapter, and the file that expects what the wrong one shows."""
    path = tmp_path_factory.mktemp("expect")
    right = skeleton(name="mine.py")
    assert WRONG[0] in right
    (path / "right.py").write_text(right, "utf-8")
    (path / "wrong.py").write_text(right.replace(*WRONG), "utf-8")
    assert typed(path, "run", "--impl", "wrong.py:MyAdapter", *RUN).returncode == 1
    assert typed(path, "expect", "update", "--write", *FILL).returncode == 0
    return path


def typed(folder, *arguments):
    return type_in(folder, arguments)


def judged(folder, adapter, *, file="pipeconform-expectations.toml", out="again", extra=()):
    done = typed(
        folder, "run", "--impl", f"{adapter}:MyAdapter", *RUN, "--expectations", file, "--out", out, *extra
    )
    return done, json.loads((folder / out / "result.json").read_text())


@pytest.mark.parametrize(
    "workers",
    [pytest.param((), id="serial"), pytest.param(("-n", "2"), id="distributed", marks=pytest.mark.slow)],
)
def test_what_is_expected_passes_the_gate_and_is_not_called_a_pass(folder, workers):
    done, result = judged(folder, "wrong.py", extra=workers)
    (cell,) = [cell for cell in result["cells"] if cell["requirement"] == "TRN-1"]

    assert (done.returncode, done.stderr) == (0, "")
    assert cell["status"] == "failed"
    assert cell["violations"][0]["expected"].startswith("pipeconform-expectations.toml:")
    assert result["expectations"]["problems"] == []
    assert "expected: TRN-1 failed 'gradient value' under GPipe" in done.stdout
    assert "violates what is expected (TRN-1) and nothing else" in done.stdout


@pytest.mark.slow
def test_an_expected_failure_is_marked_so_for_junit(folder):
    judged(folder, "wrong.py", out="marked")

    text = (folder / "marked/junit.xml").read_text()
    assert (
        '<skipped type="expected" message="expected: failed: gradient value (pipeconform-expectations' in text
    )


def test_an_unexpected_pass_fails_with_the_line_to_change(folder):
    done, result = judged(folder, "right.py")

    assert done.returncode == 1
    (problem,) = [text for text in result["expectations"]["problems"] if "unexpected pass" in text]
    assert problem.startswith("pipeconform-expectations.toml:5: unexpected pass: TRN-1 under GPipe")
    assert problem in done.stdout


@pytest.mark.slow
def test_another_signature_than_the_expected_one_fails(folder):
    text = (folder / "pipeconform-expectations.toml").read_text()
    (folder / "other.toml").write_text(text.replace("gradient value", "buffer value"))
    done, result = judged(folder, "wrong.py", file="other.toml")
    (cell,) = [cell for cell in result["cells"] if cell["requirement"] == "TRN-1"]

    assert done.returncode == 1
    assert [violation["expected"] for violation in cell["violations"]] == [""]
    assert "violates 1 of 3 judged requirements: TRN-3; 1 more is blocked" in done.stdout
    assert "it shows failed 'gradient value' instead" in result["expectations"]["problems"][0]


@pytest.mark.slow
def test_an_expired_entry_fails_although_it_is_met(folder):
    text = (folder / "pipeconform-expectations.toml").read_text()
    (folder / "old.toml").write_text(text.replace("2031-01-01", "2026-01-01"))
    done, result = judged(folder, "wrong.py", file="old.toml")
    (problem,) = result["expectations"]["problems"]

    assert done.returncode == 1
    assert re.match(r"old\.toml:\d+: expired on 2026-01-01: ", problem)
    assert problem in done.stdout


def test_an_incomplete_file_is_refused_before_anything_runs(folder):
    (folder / "bad.toml").write_text('format = 1\n[[expect]]\nrequirement = "TRN-1"\n')
    done = typed(folder, "run", "--impl", "wrong.py:MyAdapter", *RUN, "--expectations", "bad.toml")

    assert done.returncode == 2
    assert done.stderr.startswith("pipeconform: bad.toml:2: the entry lacks status, signature, ")


def test_a_proposal_is_printed_unless_it_is_to_be_written(folder):
    done = typed(folder, "expect", "update", "--file", "none.toml")

    assert done.returncode == 0
    assert 'requirement = "TRN-1"' in done.stdout
    assert not (folder / "none.toml").exists()


def test_a_date_that_is_none_is_refused(folder):
    done = typed(folder, "expect", "update", "--expires", "soon")

    assert (done.returncode, done.stderr) == (
        2,
        "pipeconform: --expires 'soon': expected a date such as 2027-01-31\n",
    )


@tenths.long
def test_pytest_takes_the_file_too(folder):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--pyargs",
            "pipeconform.suites",
            "-q",
            "--pipeconform-impl=wrong.py:MyAdapter",
            "--pipeconform-profile=smoke",
            "--pipeconform-ranks=1-2",
            "--pipeconform-requirements=TRN-1",
            "--pipeconform-expectations=pipeconform-expectations.toml",
        ],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stdout
    assert "1 xfailed" in done.stdout
    assert Path(folder / "wrong.py").exists()
