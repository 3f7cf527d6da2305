"""The pytest plugin: inert for others, the engine of a run for us.

Real sessions, in processes of their own or, where one session cannot show what the test is about to another, one after
another in a process that has imported torch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeconform.report.result import Result, read_result
from pipeconform.spec import requirements
from tests import tenths

pytestmark = pytest.mark.xdist_group("plugin")  # they share runs

SUITES = ("--pyargs", "pipeconform.suites")
SMALL = (
    "--pipeconform-profile=smoke",
    "--pipeconform-examples=2",
    "--pipeconform-ranks=2",
    "--pipeconform-schedules=gpipe,forwardonly",
    "--pipeconform-requirements=FWD-1,FWD-25,TRN-1",
)


def _pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


def _suites(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _pytest(folder, *SUITES, *arguments)


SESSIONS = """
import contextlib, io, json, os, sys, pytest
from tests.warm_servers import WarmServers
answers = sys.stdout
servers = WarmServers()
for line in sys.stdin:
    folder, arguments = json.loads(line)
    os.chdir(folder)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), servers.used():
        code = pytest.main(["-p", "no:cacheprovider", "-q", *arguments])
    print(json.dumps([int(code), shown.getvalue()]), file=answers, flush=True)
servers.close()
"""


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """A process that holds pytest sessions one after another, with fork servers that they share."""
    with subprocess.Popen(
        [sys.executable, "-c", SESSIONS],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as made:
        yield made


@pytest.fixture
def session(process, tmp_path) -> Callable[..., tuple[int, str]]:
    """Hold a session in an empty folder; return its exit code and what it printed."""

    def hold(*arguments: str) -> tuple[int, str]:
        print(json.dumps([str(tmp_path), arguments]), file=process.stdin, flush=True)
        code, shown = json.loads(process.stdout.readline())
        return code, shown

    return hold


def _without_times(result: Result) -> list[tuple[object, ...]]:
    return [
        (
            *(c.requirement, c.schedule, c.variant, c.status, c.judgements, c.distinct_cases, c.counts),
            *((v.id, v.status, v.signature, v.occurrences) for v in c.violations),
        )
        for c in result.cells
    ]


def test_other_peoples_sessions_import_neither_torch_nor_hypothesis(tmp_path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "import sys\n"
        "def test_theirs(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.has_plugin('pipeconform')\n"
        "    assert not {'torch', 'hypothesis', 'msgspec', 'rich'} & set(sys.modules)\n"
    )

    done = _pytest(tmp_path)

    assert done.returncode == 0, done.stdout


def test_every_option_marker_and_fixture_carries_the_prefix(session) -> None:
    text = session("--help")[1] + session("--markers")[1]
    ours = [line for line in text.splitlines() if "conform" in line and line.strip().startswith(("--", "@"))]

    assert len(ours) >= 12
    assert all(line.strip().startswith(("--pipeconform-", "@pytest.mark.pipeconform_")) for line in ours)


def test_the_suites_ask_for_an_implementation(session) -> None:
    code, shown = session(*SUITES)

    assert code == 4
    assert shown.count("give --pipeconform-impl") == 1


def test_every_requirement_is_collected_once_where_it_stands(session) -> None:
    _, shown = session(
        *SUITES, "--collect-only", "--pipeconform-impl=reference", "--pipeconform-schedules=gpipe"
    )
    found = re.findall(r"(\w+/\w+)\.py::(\w+)\[([A-Z]+-\d+):GPipe:default\]", shown)

    assert ("training/gradients", "gradients_equal_the_references", "TRN-1") in found
    assert sorted(identifier for *_, identifier in found) == sorted(row.id for row in requirements())


@pytest.fixture(scope="module")
def serial(tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Result]:
    folder = tmp_path_factory.mktemp("serial")
    done = _suites(folder, *SMALL, "--pipeconform-impl=torch", f"--pipeconform-out={folder}")
    return done, read_result(folder / "result.json")


def test_a_run_judges_every_cell_that_was_asked_for(serial) -> None:
    done, result = serial
    cells = {(cell.requirement, cell.schedule): cell.status for cell in result.cells}

    assert done.returncode == 1
    assert cells == {
        ("FWD-1", "ForwardOnly"): "passed",
        ("FWD-1", "GPipe"): "passed",
        ("FWD-25", "ForwardOnly"): "failed",
        ("FWD-25", "GPipe"): "failed",
        ("TRN-1", "ForwardOnly"): "not_claimed",
        ("TRN-1", "GPipe"): "passed",
    }
    assert result.run.complete
    assert result.environment.variables["default"]["OMP_NUM_THREADS"] == "1"


def test_the_end_shows_the_table_and_where_the_results_are(serial) -> None:
    done, _ = serial
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]

    assert "TRN-1 Gradients – ok" in lines
    assert "6 cells: 3 ok, 2 FAIL, 1 not claimed" in lines
    assert any(line.startswith("results: ") and line.endswith("result.json") for line in lines)


def test_without_a_folder_the_end_says_that_no_result_is_kept(session, tmp_path) -> None:
    code, shown = session(
        *SUITES, *SMALL, "--pipeconform-impl=reference", "--pipeconform-requirements=FWD-1", "-k=GPipe"
    )

    assert code == 0
    assert "results: not kept; --pipeconform-out DIR keeps them" in shown
    assert not list(tmp_path.iterdir())


def test_a_failing_cell_says_what_where_and_how_to_replay(serial) -> None:
    done, result = serial
    (violation,) = next(
        c for c in result.cells if (c.requirement, c.schedule) == ("FWD-25", "GPipe")
    ).violations

    assert violation.case.num_ranks == 2
    assert violation.confirmed
    for part in (
        "FWD-25 Hooks in dry runs (SHOULD), schedule GPipe",
        "hook in stage 0 ran 2 times for 1 microbatch; expected 1",
        f"replay: {violation.replay}",
    ):
        assert part in done.stdout


def test_executions_cases_and_judgements_are_counted_apart(serial) -> None:
    _, result = serial
    judged = {cell.requirement: cell for cell in result.cells if cell.schedule == "GPipe"}

    assert judged["TRN-1"].judgements == 2
    assert judged["TRN-1"].executions == 0  # FWD-1 executed these cases
    assert judged["FWD-1"].executions == 2
    assert sum(judged["FWD-1"].counts.values()) == 2
    assert result.totals.executions >= result.totals.distinct_cases >= 6
    assert result.totals.distinct_cases_several_ranks == result.totals.distinct_cases


@tenths.long
def test_workers_give_the_same_result_as_a_serial_run(serial, tmp_path) -> None:
    _, alone = serial
    done = _suites(
        tmp_path,
        *SMALL,
        "--pipeconform-impl=torch",
        f"--pipeconform-out={tmp_path}",
        "-n2",
        "--dist=loadgroup",
    )

    assert done.returncode == 1, done.stdout
    assert _without_times(read_result(tmp_path / "result.json")) == _without_times(alone)


def _again(folder: Path, *arguments: str, width: int = 200) -> tuple[int, list[str]]:
    """A session that remembers what failed; its exit code, and the lines that begin with a verdict or count."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *SUITES, *SMALL, "--pipeconform-impl=torch", *arguments],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": str(width)},
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout.splitlines()


def test_cells_that_failed_are_found_again_by_the_ids_that_pytest_keeps(session, tmp_path) -> None:
    (tmp_path / ".pytest_cache/v/cache").mkdir(parents=True)
    failed = "forward/outputs.py::outputs_equal_the_unpipelined_models[FWD-1:GPipe:default]"
    (tmp_path / ".pytest_cache/v/cache/lastfailed").write_text(json.dumps({failed: True}))

    _, shown = session(
        *("-p", "cacheprovider", "--lf", "--collect-only", *SUITES, *SMALL), "--pipeconform-impl=reference"
    )

    assert [line for line in shown.splitlines() if "::" in line] == [failed]


@pytest.mark.slow
def test_the_options_that_pytest_users_know_work_on_cells(tmp_path) -> None:
    """-k chooses cells, -x stops at the first, --lf runs what failed; every cell has its line and percentage."""
    few = "--pipeconform-requirements=FWD-1,FWD-25"
    code, lines = _again(tmp_path, few, "-v")
    cells = [line.partition("[")[2] for line in lines if line.endswith("%]")]
    assert code == 1
    assert [" ".join(cell.split()) for cell in cells] == [
        "FWD-1:ForwardOnly:default] PASSED [ 25%]",
        "FWD-1:GPipe:default] PASSED [ 50%]",
        "FWD-25:ForwardOnly:default] FAILED [ 75%]",
        "FWD-25:GPipe:default] FAILED [100%]",
    ]
    reasons = [line.partition(" - ")[2] for line in lines if line.startswith("FAILED ")]
    assert [reason[:50] for reason in reasons] == ["failed: hooks ran in a dry run: the pre-forward ho"] * 2

    code, lines = _again(tmp_path, few, "--lf", "-x")
    assert code == 1
    assert "run-last-failure: rerun previous 2 failures" in lines
    assert "1 failed, 2 deselected" in lines[-1]

    code, lines = _again(tmp_path, few, "--lf", "-k", "GPipe", "-v")
    judged = [line for line in lines if line.endswith("%]")]
    assert code == 1
    assert len(judged) == 1
    assert "[FWD-25:GPipe:default] FAILED" in judged[0]
    assert "1 failed, 3 deselected" in lines[-1]


USAGE = {
    "profile": ("--pipeconform-profile=smoky", "unknown profile 'smoky'; nearest: smoke"),
    "requirement": (
        "--pipeconform-requirements=FWD-99",
        "unknown requirement or chapter 'FWD-99'; nearest: FWD-9",
    ),
    "schedule": ("--pipeconform-schedules=gpype", "unknown schedule"),
    "ranks": ("--pipeconform-ranks=0-3", "--ranks '0-3': expected N or A-B"),
    "examples": ("--pipeconform-examples=0", "at least 1 case"),
    "implementation": ("--pipeconform-impl=nonsense", "cannot read --impl 'nonsense'"),
    "a file that is not there": ("--pipeconform-impl=no/where.py:Adapter", "there is no file"),
    "a module that is not there": ("--pipeconform-impl=no.where:Adapter", "ModuleNotFoundError"),
    "an unwritable folder": ("--pipeconform-out=/proc/nothing", "cannot write results"),
}


@pytest.mark.parametrize(("option", "said"), USAGE.values(), ids=USAGE)
def test_bad_options_are_refused_in_one_line(session, option, said) -> None:
    code, shown = session(*SUITES, *SMALL, "--pipeconform-impl=torch", option)

    assert code == 4, shown
    assert said in shown
    assert "Traceback" not in shown
    assert "INTERNALERROR" not in shown


def test_a_run_that_judged_nothing_is_never_green(session) -> None:
    code, _ = session(
        *SUITES,
        "--pipeconform-impl=torch",
        "--pipeconform-requirements=TRN-1",
        "--pipeconform-schedules=forwardonly",
    )

    assert code == 3


LOST = """
import os, signal, time

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)  # the exception ends it, and Python says so and goes on

def pytest_runtest_logreport(report):
    if report.when == "call":
        Last()
"""


def test_an_interrupt_whose_exception_is_lost_ends_the_session_before_the_next_cell(
    session, tmp_path
) -> None:
    (tmp_path / "loses_interrupts.py").write_text(LOST)
    out = f"--pipeconform-out={tmp_path}"
    code, _ = session("-p", "loses_interrupts", *SUITES, "--pipeconform-impl=reference", *SMALL, out)
    result = read_result(tmp_path / "result.json")

    assert code == pytest.ExitCode.INTERRUPTED
    assert len(result.cells) == 1
    assert not result.run.complete


@tenths.long
def test_an_interrupt_keeps_the_results_so_far_and_leaves_no_process(tmp_path) -> None:
    with (
        (tmp_path / "stderr").open("w") as stderr,
        subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "pytest",
                    "-p",
                    "no:cacheprovider",
                    "--pyargs",
                    "pipeconform.suites",
                    "-v",
                ),
                *("--pipeconform-impl=torch", "--pipeconform-ranks=2", f"--pipeconform-out={tmp_path}"),
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        ) as run,
    ):
        assert run.stdout is not None
        for line in run.stdout:
            if "PASSED" in line:
                break
        run.send_signal(signal.SIGINT)
        run.stdout.read()
    result = read_result(tmp_path / "result.json")

    # pytest's own report of the interrupt fails where Python 3.11 knows no line for an instruction
    stumbled = "tb_lineno" in (tmp_path / "stderr").read_text()
    assert run.returncode == (1 if stumbled else 2)
    assert not result.run.complete
    assert [cell.status for cell in result.cells][:1] == ["passed"]
    assert _processes_of(run.pid) == []


def _processes_of(session: int) -> list[str]:
    """Processes that still belong to the session of a run, zombies apart, after at most five seconds."""
    found: list[str] = []
    for _ in range(50):
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(stat.parent.name)
        if not found:
            break
        time.sleep(0.1)
    return found
