"""Runs under a real Slurm, started on this machine; ``make clusters`` runs them, and they skip where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clusters.slurm import Cluster, why_not
from tests.docs.pages import blocks

ROOT = Path(__file__).parents[2]
WRONG = "pipeconform.reference_impl.faults.scale:NotDivided"
ASKED = ("--profile", "smoke", "--schedules", "GPipe,1F1B", "--requirements", "FWD-1,TRN-1,TRN-3")
SIZES = ("--ranks", "1-2", "--examples", "3")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}"),
    pytest.mark.xdist_group("clusters/slurm"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def job(cluster, tmp_path):
    """Submit ``pipeconform run --on slurm`` with these arguments."""

    def submit(*arguments):
        command = " ".join([sys.executable, "-m", "pipeconform", "run", "--on", "slurm", *arguments])
        script = tmp_path / "job.sbatch"
        script.write_text(
            "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --no-kill --output=log --open-mode=append\n"
            f"export PYTHONPATH={ROOT}\nexec {command}\n"
        )
        return cluster.submit(script, cwd=tmp_path)

    yield submit
    said = tmp_path / "log"
    if said.is_file():
        print(said.read_text())


def local(folder, impl):
    """The result of the same run without a cluster."""
    command = [sys.executable, "-m", "pipeconform", "run", "--impl", impl, *ASKED, *SIZES, "--out", "local"]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return result_in(folder / "local")


def result_in(folder):
    return json.loads((folder / "result.json").read_text())


def found(result):
    """What was judged and found; where ranks were and how long it took differ."""
    told = ("id", "status", "signature", "digest")
    return [
        (
            *(cell.get(key) for key in ("requirement", "schedule", "status", "judgements", "compared")),
            [[violation.get(key) for key in told] for violation in cell.get("violations", [])],
        )
        for cell in result["cells"]
    ]


def await_cells(out, number, *, limit=300.0):
    deadline = time.monotonic() + limit
    while sum(len(path.read_text().splitlines()) for path in out.glob(".run/cells.*")) < number:
        assert time.monotonic() < deadline, "no cell was judged"
        time.sleep(0.05)


def nothing_is_left(cluster, *, limit=30.0):
    deadline = time.monotonic() + limit
    while left := cluster.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    return True


@pytest.mark.parametrize(("impl", "code"), [("reference", "COMPLETED"), (WRONG, "FAILED")])
def test_the_verdicts_are_those_of_this_machine(cluster, job, tmp_path, impl, code):
    number = job("--impl", impl, *ASKED, *SIZES, "--out", "out")

    assert cluster.await_end(number) == code
    assert found(result_in(tmp_path / "out")) == found(local(tmp_path, impl))
    assert "agent 0 on host" in (tmp_path / "log").read_text()
    assert nothing_is_left(cluster)


def test_a_node_that_dies_costs_no_verdict(cluster, job, tmp_path):
    number = job("--impl", WRONG, *ASKED, *SIZES, "--out", "out", "--agent-wait", "60")
    await_cells(tmp_path / "out", 1)
    cluster.kill_node("n1")  # the job's script is on n0
    try:
        ended = cluster.await_end(number)
        if ended == "NODE_FAIL":  # Slurm noticed it first, and ended the job
            number = job("--resume", "out")
            ended = cluster.await_end(number)
        said = (tmp_path / "log").read_text()
        assert "another is started" in said
        assert ended == "FAILED", said
        assert found(result_in(tmp_path / "out")) == found(local(tmp_path, WRONG))
    finally:
        cluster.start_node("n1")
        cluster.await_idle()
    assert nothing_is_left(cluster)


@pytest.mark.parametrize("how", ["scancel", "requeue", "kill"])
def test_a_job_that_was_ended_goes_on(cluster, job, tmp_path, how):
    arguments = ("--impl", WRONG, *ASKED, *SIZES, "--resume", "out")
    number = job(*arguments)
    await_cells(tmp_path / "out", 2)
    if how == "requeue":  # as preemption does
        assert cluster.run("scontrol", "requeue", number).returncode == 0
    else:
        signal = ("--signal=KILL", "--full") if how == "kill" else ()
        assert cluster.run("scancel", *signal, number).returncode == 0
        cluster.await_end(number)
        assert nothing_is_left(cluster)
        status = subprocess.run(
            [sys.executable, "-m", "pipeconform", "status", "out"],
            check=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ).stdout
        assert " of 6 cells judged" in status
        assert "go on: pipeconform run --resume out" in status
        number = job(*arguments)
    assert cluster.await_end(number) == "FAILED"  # violations were found
    assert "judged before" in (tmp_path / "log").read_text()
    assert found(result_in(tmp_path / "out")) == found(local(tmp_path, WRONG))
    lines = [
        line for path in (tmp_path / "out").glob(".run/cells.*") for line in path.read_text().splitlines()
    ]
    assert len(lines) == 6
    assert nothing_is_left(cluster)


def test_the_script_of_the_documentation_runs_as_it_stands(cluster, tmp_path, pytestconfig, monkeypatch):
    docs = pytestconfig.rootpath / "docs"
    (script,) = [one.text for one in blocks(docs / "clusters.md") if one.title == "run.sbatch"]
    (source,) = [one.text for one in blocks(docs / "certify.md") if one.title == "mine.py"]
    limits = "--schedules GPipe --requirements FWD-1 --ranks 1-2 --examples 2 --profile smoke"  # only shorter
    (tmp_path / "run.sbatch").write_text(script.replace("--on slurm", f"--on slurm {limits}"))
    (tmp_path / "adapter.py").write_text(source)
    monkeypatch.setitem(cluster.environment, "PYTHONPATH", str(ROOT))
    monkeypatch.setitem(
        cluster.environment,
        "PATH",
        os.pathsep.join([str(Path(sys.executable).parent), cluster.environment["PATH"]]),
    )
    number = cluster.submit(tmp_path / "run.sbatch", cwd=tmp_path)

    assert cluster.await_end(number) == "COMPLETED", (tmp_path / f"slurm-{number}.out").read_text()
    assert result_in(tmp_path / "results")["run"]["complete"]
    assert nothing_is_left(cluster)


def test_without_an_allocation_it_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pipeconform", "run", "--impl", "reference", "--on", "slurm"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
    )

    assert done.returncode == 2
    assert "start it with sbatch or salloc" in done.stderr
