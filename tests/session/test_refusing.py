"""What cannot be judged is refused before anything is collected, by one process and by several in the same words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tenths

HERE = Path(__file__).parent
GUARD = 300  # seconds
SMALL = ("--profile", "smoke", "--ranks", "1-2")
BROKEN = "raise RuntimeError('this adapter cannot be imported')\n"
ADAPTER = "from pipeconform.reference_impl.adapter import ReferenceAdapter as Mine\n"


def run(folder, *more, **variables):
    command = [sys.executable, "-m", "pipeconform", "run", *SMALL, *more]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        **variables,
    }
    done = subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=GUARD, env=environment
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    return tmp_path


@tenths.long
@pytest.mark.parametrize(
    ("workers", "asked", "words"),
    [
        ("1", ["--impl", "reference", "--schedules", "Zigzag"], "unknown schedule"),
        # other words that go the same way
        pytest.param("2", ["--impl", "broken.py:Mine"], "this adapter cannot be imported", marks=tenths.mark),
        pytest.param("1", ["--impl", "reference", "--device", "cuda"], "cuda device", marks=tenths.mark),
        pytest.param("1", ["--impl", "torch-ddp", "--requirements", "FWD-1"], "FWD-1", marks=tenths.mark),
    ],
)
def test_workers_refuse_in_the_words_of_one_process_and_leave_nothing(
    folder, typed, warm_servers, workers, asked, words
):
    with warm_servers.used():  # the processes that this is about are those of the run with workers
        code, out, err = typed("run", *SMALL, *asked)
    temporary = folder / "temporary"
    temporary.mkdir()
    again, said = run(folder, *asked, "-n", workers, TMPDIR=str(temporary))

    assert (code, again) == (2, 2)
    assert words in err
    assert said == out + err  # once, although every worker says it
    assert not (folder / "pipeconform-results" / "result.json").exists()
    left = {path.name for path in temporary.glob("pipeconform-*")}
    assert left <= {f"pipeconform-leases-{os.getuid()}"}  # shared with other runs on purpose


@pytest.mark.slow
def test_an_adapter_that_breaks_in_the_middle_is_told_and_what_was_judged_is_kept(folder):
    """A worker ends; the one in its place finds an adapter that can be imported no more."""
    (folder / "mine.py").write_text(ADAPTER)
    code, said = run(
        folder,
        *("--impl", "mine.py:Mine", "--schedules", "GPipe,1F1B", "--requirements", "FWD-1,TRN-1,TRN-3"),
        *("-n", "2", "--", "-p", "ends_workers", "-p", "breaks_adapter"),
        ENDS="TRN-3/once",
        ENDED=str(folder / "ended"),
        BREAKS=str(folder / "mine.py"),
    )

    assert code == 2, said
    assert "this adapter cannot be imported" in said
    result = json.loads((folder / "pipeconform-results" / "result.json").read_text())
    assert not result["run"]["complete"]
    assert {cell["requirement"] for cell in result["cells"]} >= {"FWD-1", "TRN-1"}
