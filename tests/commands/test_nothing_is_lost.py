"""What was judged is shown and kept, whatever becomes of the disk, the terminal and the temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeconform.report.result import read_result
from tests import tenths
from tests.small_disk import on_a_disk_of

SMALL = ("--schedules", "GPipe", "--requirements", "FWD-1,FWD-3", "--ranks", "1-2", "--examples", "3")
ENDING = """
import os, shutil, sys, time

from pipeconform.reference_impl.adapter import ReferenceAdapter


class Ends(ReferenceAdapter):
    def describe(self):
        os._exit(7)


class Waits(ReferenceAdapter):
    def describe(self):
        while True:
            time.sleep(1)


class ClosesEverything(ReferenceAdapter):
    def describe(self):
        os.closerange(0, 256)
        return super().describe()


class Removes(ReferenceAdapter):
    def build(self, plan):
        shutil.rmtree(os.environ["TO_BE_REMOVED"], ignore_errors=True)
        return super().build(plan)
"""


def run(*arguments, cwd, before=(), **environment):
    return subprocess.run(
        [*before, sys.executable, "-m", "pipeconform", "run", *arguments, *SMALL],
        check=False,
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="latin-1",
        timeout=180,
        env={**os.environ, **environment},
    )


@tenths.long
def test_a_full_disk_costs_neither_verdicts_nor_smallest_cases(tmp_path):
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    out.mkdir()
    temporary.mkdir()
    done = run(
        "--impl",
        "pipeconform.reference_impl.faults.wire:StaleActivation",
        "--out",
        str(out),
        cwd=tmp_path,
        before=on_a_disk_of(4, out),
        TMPDIR=str(temporary),
        PYTHONIOENCODING="latin-1",
    )

    assert done.returncode == 3, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert "violates 1 of 2 judged requirements: FWD-1" in done.stdout
    assert r"with p \u2265 2" in done.stdout  # latin-1 has no such character
    (kept,) = temporary.glob("*/result.json")
    assert str(kept) in done.stderr
    result = read_result(kept)
    assert [cell.status for cell in result.cells] == ["failed", "passed"]
    assert all(violation.case.digest == violation.digest for violation in result.cells[0].violations)
    assert list(temporary.iterdir()) == [kept.parent]


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("Ends", "exit code 7"),
        pytest.param("Waits", "did not end", marks=pytest.mark.slow),
        pytest.param("ClosesEverything", "ended the process", marks=pytest.mark.slow),
    ],
)
def test_a_describe_that_ends_or_stops_its_process_is_the_adapters_mistake(typed, tmp_path, adapter, said):
    (tmp_path / "mine.py").write_text(ENDING, "utf-8")
    code, _, err = typed("run", "--impl", f"mine.py:{adapter}", *SMALL)

    assert code == 2, err
    assert said in err
    assert "expected a Description" in err


@pytest.mark.slow
def test_a_run_outlives_its_temporary_folder(tmp_path):
    (tmp_path / "mine.py").write_text(ENDING, "utf-8")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = run("--impl", "mine.py:Removes", cwd=tmp_path, TMPDIR=str(temporary), TO_BE_REMOVED=str(temporary))

    result = read_result(tmp_path / "pipeconform-results" / "result.json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert all(cell.judgements and cell.violations for cell in result.cells)
