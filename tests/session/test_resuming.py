"""A run that was ended goes on, and finds what it would have found; see also tests/commands/test_resuming.py."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tenths
from tests.command_line import type_in

HERE = Path(__file__).parent
WRONG = "pipeconform.reference_impl.faults.scale:NotDivided"
ASKED = ["--profile", "smoke", "--schedules", "GPipe,1F1B", "--requirements", "FWD-1,TRN-1,TRN-3"]
SIZES = ["--ranks", "1-2", "--examples", "3"]
GUARD = 600  # seconds
pytestmark = pytest.mark.xdist_group("session/resuming")  # they share a run


def run(folder, *arguments, **variables):
    path = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "pipeconform", "run", *arguments],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=GUARD,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def here(monkeypatch, warm_servers):
    """Go on with a run in this process, where torch is imported and fork servers run already."""
    monkeypatch.syspath_prepend(str(HERE))

    def go_on(folder, *arguments):
        with warm_servers.used():
            done = type_in(folder, ["run", *arguments])
        return done.returncode, done.stdout + done.stderr

    return go_on


def result_in(folder):
    return json.loads((folder / "result.json").read_text())


def lasting(value):
    """What must be equal: not times, and not how often cases were executed again because memory was lost."""
    if isinstance(value, dict):
        left_out = ("seconds", "created", "ids", "executions", "after", "began", "ended", "waited")
        return {key: lasting(part) for key, part in value.items() if key not in left_out}
    return [lasting(part) for part in value] if isinstance(value, list) else value


def judged_in(folder):
    """The lines that were written to their ends."""
    return [line for path in folder.glob(".run/cells.*") for line in path.read_text().splitlines(True)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, warm_servers):
    folder = tmp_path_factory.mktemp("whole")
    with warm_servers.used():
        done = type_in(folder, ["run", "--impl", WRONG, *ASKED, *SIZES, "--out", "out"])
    assert done.returncode == 1, done.stdout + done.stderr
    return result_in(folder / "out")


@pytest.mark.parametrize(
    ("signum", "code", "more"),
    [
        pytest.param(signal.SIGKILL, -signal.SIGKILL, (), marks=tenths.mark),
        pytest.param(signal.SIGINT, 130, (), marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 130, (), marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, ("-n", "2"), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_ended_goes_on_and_finds_the_same(whole, here, tmp_path, signum, code, more):
    out = tmp_path / "out"
    ends = f"{int(signum)}/{2 if more else 4}"
    ended, said = run(
        tmp_path,
        *("--impl", WRONG, *ASKED, *SIZES, "--out", "out", *more, "--", "-p", "ends_runs"),
        ENDS=ends,
    )
    assert ended == code, said
    before = judged_in(out)
    assert 0 < len(before) < 6

    with next(out.glob(".run/cells.*")).open("a") as file:
        file.write(before[0][: len(before[0]) // 2])  # a line that was not written to its end
    went_on, said = (run if more else here)(tmp_path, "--resume", "out", *more)

    assert went_on == 1, said
    assert f"{len(before)} of 6 cells judged before" in said
    found = result_in(out)
    assert lasting(found) == lasting(whole)
    assert found["run"]["complete"]
    after = [line for line in judged_in(out) if line.endswith("\n") and line not in before]
    assert len(after) == 6 - len(before)  # no cell was judged twice


@pytest.mark.slow
def test_a_run_may_be_ended_again_and_again(whole, tmp_path):
    out = tmp_path / "out"
    command = ["--impl", WRONG, *ASKED, *SIZES, "--resume", "out", "--", "-p", "ends_runs"]
    for _ in range(3):  # a scheduler that requeues a job starts the same command
        run(tmp_path, *command, ENDS=f"{int(signal.SIGKILL)}/{len(judged_in(out)) + 2}")
    assert len(judged_in(out)) >= 2
    code, said = run(tmp_path, *command)

    assert code == 1, said
    assert lasting(result_in(out)) == lasting(whole)
