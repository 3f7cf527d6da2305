"""Whole runs as a user makes them: a fresh folder, the skeleton, mistakes in a copy of it, an interruption."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from pipeconform.commands.init import skeleton
from tests import tenths
from tests.command_line import type_in
from tests.facts import tells

SMALL = ("--profile", "smoke", "--ranks", "1-2", "--requirements", "FWD-1,TRN-1")
WRONG = ("losses[k] / len(losses) if self._mean else losses[k]", "losses[k]")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose own pytest configuration would break any run."""
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not the run’s conftest')", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n", "utf-8")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    return tmp_path


@pytest.fixture
def shell(folder):
    """Run pipeconform there, in a process of its own."""

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, "-m", "pipeconform", *arguments],
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **variables},
        )

    return run


@pytest.fixture
def here(folder):
    """Run pipeconform there, in this process."""
    return lambda *arguments: type_in(folder, arguments)


@pytest.fixture
def adapter(tmp_path):
    """Write the skeleton, with one text replaced by another."""

    def write(name, was="", becomes=""):
        text = skeleton(name=name)
        assert was in text
        (tmp_path / name).write_text(text.replace(was, becomes) if was else text, "utf-8")
        return f"{name}:MyAdapter"

    return write


def test_the_skeleton_meets_what_it_claims_and_a_run_leaves_nothing_but_its_results(here, shell, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    assert here("init", "mine.py").returncode == 0
    before = set(tmp_path.iterdir())
    # what Python compiles of an adapter it keeps beside it, unless told otherwise
    environment = {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    done = shell("run", "--impl", "mine.py:MyAdapter", *SMALL, **environment)

    assert (done.returncode, done.stderr) == (0, "")
    verdict, further, results, report = done.stdout.splitlines()[-4:]
    assert tells(verdict, "toy GPipe 1.0", "meets all 2")
    assert tells(further, "next", "pipeconform run --impl mine.py:MyAdapter --profile smoke")
    assert (results, report) == (
        "results: pipeconform-results/result.json",
        "report: pipeconform-results/report.html",
    )
    assert {"result.json", "report.html", "junit.xml"} <= {
        path.name for path in tmp_path.glob("pipeconform-results/*")
    }
    assert set(tmp_path.iterdir()) - before == {tmp_path / "pipeconform-results"}
    assert list(temporary.iterdir()) == []


def test_a_log_gets_one_plain_line_per_requirement(here, adapter):
    done = here("run", "--impl", adapter("mine.py"), *SMALL)

    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["judging", "FWD-1", "TRN-1"]
    assert not set(done.stdout) & {"\x1b", "\r", "\b"}


@pytest.mark.slow
def test_quiet_prints_the_last_word_only(here, adapter):
    done = here("run", "--impl", adapter("wrong.py", *WRONG), *SMALL, "--quiet")

    assert (done.returncode, done.stderr) == (1, "")
    blocked, verdict = done.stdout.splitlines()
    assert tells(blocked, "blocked", "TRN-1", "GPipe", "by TRN-3")
    assert tells(verdict, "toy GPipe 1.0", "violates 1 of 3", "TRN-3", "1 more", "blocked")


def test_json_prints_the_result_file_and_nothing_else(here, adapter, tmp_path):
    done = here("run", "--impl", adapter("wrong.py", *WRONG), *SMALL, "--json")

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (tmp_path / "pipeconform-results/result.json").read_text()


@pytest.mark.slow
def test_a_violation_is_reproduced_until_it_is_fixed(here, adapter, tmp_path):
    wrong, right = adapter("wrong.py", *WRONG), adapter("right.py")
    done = here("run", "--impl", wrong, *SMALL, "--out", "found")
    cells = json.loads((tmp_path / "found/result.json").read_text())["cells"]
    (violation,) = next(cell for cell in cells if cell["requirement"] == "TRN-1")["violations"]

    assert done.returncode == 1
    assert "\n1. TRN-3 " in done.stdout
    assert "violates 1 of 3 judged requirements: TRN-3; 1 more is blocked" in done.stdout
    assert f"pipeconform replay {violation['id']} --impl {wrong} --result found/result.json" in done.stdout

    again = here("replay", violation["id"], "--impl", wrong, "--result", "found")
    (tmp_path / "case.json").write_text(json.dumps(violation["case"]))
    fixed = here("replay", "case.json", "--impl", right)

    assert (again.returncode, again.stderr) == (1, "")
    assert "\nREPRODUCED:\nTRN-1 failed: gradient value" in again.stdout
    assert (fixed.returncode, fixed.stderr) == (0, "")
    assert "\nFIXED: " in fixed.stdout


def test_a_breach_of_the_contract_is_told_by_method_and_type(here, adapter):
    text = "        return StepResult(output=", "        StepResult(output="
    done = here("run", "--impl", adapter("broken.py", *text), *SMALL)

    assert done.returncode == 3
    assert "run() returned None; expected pipeconform.adapter.StepResult" in done.stdout
    assert tells(done.stderr, "pipeconform", "not be judged", "run() returned None")
    assert done.stderr.count("\n") == 1


def test_a_schedule_that_is_not_claimed_is_answered_with_those_that_are(here, adapter):
    done = here("run", "--impl", adapter("mine.py"), "--schedules", "GPie")

    assert (done.returncode, done.stdout) == (2, "")
    assert tells(done.stderr, "unknown schedule", "toy GPipe", "'GPie'", "nearest", "GPipe")
    assert done.stderr.count("\n") == 1


def marked(mark):
    """The processes whose environment holds `mark`, on systems that tell."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def started(*command: str, folder: Path, mark: str) -> subprocess.Popen[str]:
    """The command in a process of its own; it and all that it starts have the mark in their environment."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeconform", *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PIPECONFORM_TEST_MARK": mark},
    )


def left_running(mark: str) -> list[int]:
    """The processes with the mark that have not ended within ten seconds."""
    deadline = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc to find what is left running"
)
@pytest.mark.parametrize(
    ("signum", "options"),
    [
        pytest.param(signal.SIGINT, [], id="Ctrl-C"),
        pytest.param(signal.SIGTERM, [], id="SIGTERM", marks=tenths.mark),
        pytest.param(signal.SIGTERM, ["-n", "2"], id="SIGTERM with workers", marks=tenths.mark),
    ],
)
def test_an_interrupted_run_keeps_its_results_and_leaves_no_process(adapter, tmp_path, signum, options):
    mark = uuid.uuid4().hex
    command = ("run", "--impl", adapter("mine.py"), "--profile", "core", *options)
    run = started(*command, folder=tmp_path, mark=mark)
    assert run.stdout is not None
    while "judgement" not in (line := run.stdout.readline()):
        assert line, run.communicate()[1]
    run.send_signal(signum)
    _, errors = run.communicate(timeout=60)
    left = left_running(mark)

    assert run.returncode == 130, errors
    assert tells(errors, "interrupted", "results so far in pipeconform-results/result.json")
    assert errors.endswith(" pipeconform run --resume pipeconform-results\n")
    assert errors.count("\n") == 1
    assert json.loads((tmp_path / "pipeconform-results/result.json").read_text())["run"]["complete"] is False
    assert left == []


@pytest.mark.slow
def test_an_adapter_that_ends_its_process_is_told_apart_from_a_wrong_name(shell, tmp_path):
    (tmp_path / "dies.py").write_text("import os\nos._exit(3)\n")
    done = shell("run", "--impl", "dies.py:MyAdapter", *SMALL)

    assert (done.returncode, done.stdout) == (2, "")
    assert "ended the process (exit code 3); expected a Description to be returned" in done.stderr
    assert "died      exit code 3" in done.stderr


def test_a_rank_that_never_sleeps_is_stopped_at_the_time_limit(typed):
    """Nothing proves that a rank which computes, or polls a device, is stuck."""
    engine = Path(__file__).with_name("spinning_engine.py")
    asked = ("--requirements", "FWD-1", "--schedules", "GPipe", "--ranks", "1", "--examples", "1")
    code, shown, _ = typed(
        "run", "--impl", f"{engine}:Spinning", *asked, "--profile", "smoke", "--time-limit", "0.5"
    )
    assert code == 1
    assert "no rank makes progress: time limit of 0.5 s" in shown


def test_a_time_limit_is_more_than_nothing(typed):
    code, _, said = typed("run", "--impl", "reference", "--time-limit", "0")
    assert code == 2
    assert "--time-limit" in said


@pytest.mark.slow
def test_a_second_ctrl_c_tells_of_no_exception_in_a_finalizer(tmp_path):
    command = ("run", "--impl", "reference", "--profile", "smoke", "--requirements", "FWD-1,TRN-14")
    run = started(*command, folder=tmp_path, mark=uuid.uuid4().hex)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("judging ")
    for _ in range(2):
        time.sleep(0.4)
        run.send_signal(signal.SIGINT)
    out, errors = run.communicate(timeout=60)

    assert run.returncode == 130
    assert "Traceback" not in out + errors
    assert "interrupted" in errors


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="needs /proc to find what is left running"
)
def test_a_certification_stopped_among_the_canaries_keeps_its_verdicts_and_leaves_no_process(tmp_path):
    """A shard of one requirement, and a Ctrl-C as soon as the first canary has been told of."""
    mark = uuid.uuid4().hex
    command = ("certify", "--impl", "reference-wrapper", "--level", "wrapper", "--shard", "1/40")
    run = started(*command, folder=tmp_path, mark=mark)
    assert run.stdout is not None
    while " tried, " not in (line := run.stdout.readline()):
        assert line, run.communicate()[1]
    assert len(marked(mark)) > 1
    run.send_signal(signal.SIGINT)
    out, errors = run.communicate(timeout=60)
    left = left_running(mark)
    stopped, told, ways = out.splitlines()[-3:]
    folder = tmp_path / "pipeconform-results/certify.wrapper.1-of-40"
    result = json.loads((folder / "result.json").read_text())

    assert (run.returncode, errors.lstrip()) == (130, "pipeconform: interrupted\n")
    assert re.fullmatch(r"\d+ of \d+ tried, \d+ detected, stopped in DPW-\d+ \S+", stopped)
    kept = f"{folder.relative_to(tmp_path)}/result.json"
    assert tells(told, "no package", "all requirements were judged", kept, "not all canaries were tried")
    assert tells(told, "certify starts over", "requirements")
    assert tells(ways, "-n auto", "in parallel")
    assert result["run"]["complete"]
    assert {cell["status"] for cell in result["cells"]} == {"passed"}
    assert list(tmp_path.glob("*.zip")) == []
    assert left == []
