"""A run in several processes: the verdicts and the file of one in a single process, whatever befalls the workers."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import tenths
from tests.command_line import type_in

HERE = Path(__file__).parent
SELECTED = [
    *(
        "--profile",
        "smoke",
        "--schedules",
        "GPipe,1F1B,Interleaved1F1B",
        "--requirements",
        "FWD-1,TRN-1,TRN-3",
    ),
    *("--ranks", "1-2", "--examples", "3"),
]
WRONG = "pipeconform.reference_impl.faults.scale:NotDivided"
GUARD = 600  # seconds
pytestmark = pytest.mark.xdist_group("session/distributed")  # they share runs


def run_here(folder, arguments):
    """Exit code, what was printed, and the result file of a run in this process, where torch is imported already."""
    done = type_in(folder, ["run", *arguments])
    path = folder / "pipeconform-results" / "result.json"
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads(path.read_text()) if path.is_file() else None,
    )


def run(folder, *more, impl="reference", **variables):
    """Exit code, what was printed, and the result file of a run in processes of its own."""
    command = [sys.executable, "-m", "pipeconform", "run", "--impl", impl, *SELECTED, *more]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        **variables,
    }
    done = subprocess.run(
        command, check=False, cwd=folder, capture_output=True, text=True, timeout=GUARD, env=environment
    )
    path = folder / "pipeconform-results" / "result.json"
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads(path.read_text()) if path.is_file() else None,
    )


def timeless(value):
    """A result without what a clock says."""
    if isinstance(value, dict):
        return {
            key: timeless(part)
            for key, part in value.items()
            if key not in ("seconds", "created", "ids", "after", "began", "ended", "waited")
        }
    return [timeless(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def serial(tmp_path_factory, warm_servers):
    """By implementation what one process finds; each is run once."""
    known = {}

    def find(impl):
        if impl not in known:
            with warm_servers.used():
                known[impl] = run_here(tmp_path_factory.mktemp("serial"), ["--impl", impl, *SELECTED])
        return known[impl]

    return find


@dataclass(frozen=True)
class Shared:
    """A run of two workers, and what two plugins noted that only watch."""

    code: int
    said: str
    result: dict[str, Any]
    begun: list[tuple[str, str]]
    """Which worker began which cell, in order."""
    loaded: set[str]
    """The modules of the controller."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    code, said, result = run(
        folder,
        *("-n", "2", "--", "-p", "ends_workers", "-p", "tells_modules"),
        ENDS="/never",
        ENDED=str(folder / "begun"),
        MODULES=str(folder / "loaded"),
    )
    begun = [tuple(line.split()) for line in (folder / "begun").read_text().splitlines()]
    return Shared(code, said, result, begun, set((folder / "loaded").read_text().split()))


def test_two_workers_write_the_file_that_one_process_writes(serial, shared):
    code, _, alone = serial("reference")

    assert (shared.code, code) == (0, 0), shared.said
    assert timeless(shared.result["cells"]) == timeless(alone["cells"])
    assert timeless(shared.result) == timeless(alone)


def test_a_controller_imports_nothing_that_judges(shared):
    assert shared.code == 0, shared.said
    assert "pipeconform.session.run" in shared.loaded
    judges = {"torch", "hypothesis", "pipeconform.campaign.campaign", "pipeconform.execute.worker"}
    assert not shared.loaded & judges


def found(result):
    """What was found in every cell, in order; how small it was made depends on the clock, too."""
    told = ("id", "status", "signature", "occurrences")
    return [
        (
            *(cell.get(key) for key in ("requirement", "schedule", "status", "judgements")),
            [[violation.get(key) for key in told] for violation in cell.get("violations", [])],
        )
        for cell in result["cells"]
    ]


@pytest.mark.slow
def test_two_workers_find_what_one_process_finds(serial, tmp_path):
    code, _, alone = serial(WRONG)
    again, said, shared = run(tmp_path, "-n", "2", impl=WRONG)

    assert (again, code) == (1, 1), said
    assert found(shared) == found(alone)


@tenths.long
def test_a_wrappers_requirements_are_shared_among_workers(tmp_path, warm_servers):
    asked = ["--impl", "reference-wrapper", "--requirements", "DPW-1,DPW-5,DPW-14", "--ranks", "1-2"]
    asked += ["--examples", "2", "--profile", "smoke"]
    for name in ("alone", "shared"):
        (tmp_path / name).mkdir()
    with warm_servers.used():
        code, said, alone = run_here(tmp_path / "alone", asked)
    command = [sys.executable, "-m", "pipeconform", "run", *asked, "-n", "2"]
    done = subprocess.run(
        command, check=False, cwd=tmp_path / "shared", capture_output=True, text=True, timeout=GUARD
    )
    shared = json.loads((tmp_path / "shared/pipeconform-results/result.json").read_text())

    assert code == 0, said
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(alone["cells"]) == 3
    assert timeless(shared) == timeless(alone)


def test_workers_execute_no_more_than_one_process_does(serial, shared):
    """What one requirement had executed serves the others of its schedule, which are kept together."""
    _, _, alone = serial("reference")

    assert shared.result["totals"]["executions"] == alone["totals"]["executions"]
    assert alone["totals"]["judgements"] > alone["totals"]["executions"]


@pytest.fixture
def ending(tmp_path):
    """Run with workers that end somewhere; also says which workers were there."""

    def run_so(ends, *more):
        marker = tmp_path / "ended"
        found = run(tmp_path, "-n", "2", *more, "--", "-p", "ends_workers", ENDS=ends, ENDED=str(marker))
        return *found, [line.split() for line in marker.read_text().splitlines()] if marker.is_file() else []

    return run_so


def test_the_cells_of_a_schedule_are_judged_by_one_worker(shared):
    """So that what one requirement had executed serves the next, without waiting for anybody."""
    of_schedule = {}
    for worker, name in shared.begun:
        of_schedule.setdefault(name.split(":")[1], set()).add(worker)

    assert len(shared.begun) == 9
    assert [len(workers) for workers in of_schedule.values()] == [1, 1, 1]
    assert len(set.union(*of_schedule.values())) == 2


@pytest.mark.slow
def test_a_worker_that_ends_costs_no_verdict(serial, ending):
    _, _, alone = serial("reference")
    code, said, result, workers = ending("TRN-1:GPipe/once")

    assert code == 0, said
    assert len({worker for worker, _ in workers}) == 2  # another judged it
    assert timeless(result["cells"]) == timeless(alone["cells"])
    assert result["run"]["complete"]


@pytest.mark.slow
def test_a_cell_that_ends_every_worker_is_given_up_and_the_others_are_judged(serial, ending):
    _, _, alone = serial("reference")
    code, said, result, workers = ending("TRN-1:GPipe/always")

    assert code == 3, said
    assert len(workers) == 2
    lost = [c for c in result["cells"] if (c["requirement"], c["schedule"]) == ("TRN-1", "GPipe")]
    assert [cell["status"] for cell in lost] == ["error"]
    assert "crashed while running" in lost[0]["reason"]
    rest = [cell for cell in result["cells"] if cell not in lost]
    assert timeless(rest) == [
        cell
        for cell in timeless(alone["cells"])
        if (cell["requirement"], cell["schedule"]) != ("TRN-1", "GPipe")
    ]


@pytest.mark.slow
def test_the_last_cell_of_a_run_may_end_its_worker_too(serial, ending):
    _, _, alone = serial("reference")
    code, said, result, _ = ending("TRN-3/once")

    assert code == 0, said
    assert timeless(result["cells"]) == timeless(alone["cells"])


@pytest.mark.slow
def test_workers_that_cannot_begin_end_the_run_with_a_reason(ending):
    code, said, _, _ = ending("start")

    assert code == 3
    assert "workers ended one after another without judging anything" in said
