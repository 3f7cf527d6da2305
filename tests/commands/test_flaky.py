"""An implementation that is wrong once: its verdict is flaky, told so, and stops the gate."""

import json
import subprocess
import sys

import pytest

ONCE = '''
import itertools

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

READ = itertools.count()


class WrongOnce(ReferencePipeline):
    def gradients(self):
        found = super().gradients()
        if next(READ) != 2:
            return found
        return {
            stage: {name: None if one is None else one * 1.5 for name, one in each.items()}
            for stage, each in found.items()
        }


class Sometimes(ReferenceAdapter):
    """Wrong the third time that a process reads gradients, and never again."""

    pipeline = WrongOnce
'''
RUN = ("--profile", "smoke", "--ranks", "2", "--requirements", "TRN-1", "--schedules", "GPipe")


@pytest.fixture
def typed(tmp_path):
    (tmp_path / "once.py").write_text(ONCE)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pipeconform", *arguments],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.mark.slow
def test_what_happens_once_is_executed_again_and_called_flaky(typed, tmp_path):
    before = typed("run", "--impl", "reference", *RUN, "--out", "before")
    done = typed("run", "--impl", "once.py:Sometimes", *RUN, "--out", "after")
    (cell,) = json.loads((tmp_path / "after/result.json").read_text())["cells"]
    (violation,) = cell["violations"]
    gate = typed("compare", "before", "after")

    assert (before.returncode, done.returncode) == (0, 1)
    assert (cell["status"], violation["status"], violation["confirmed"]) == ("flaky", "failed", False)
    assert (violation["reruns"], violation["shown_again"]) == (5, 0)
    assert "1. TRN-1 Gradients (MUST): FLAKY under GPipe" in done.stdout
    assert gate.returncode == 1
    assert (
        "flaky (1 cell):\n  TRN-1 under GPipe: passed → flaky, failed: gradient value; shown again in 0 of 5"
        in gate.stdout
    )
