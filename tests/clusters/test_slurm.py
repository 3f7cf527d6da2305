"""Runs under a real Slurm, started on this machine; ``make clusters`` runs them, and they skip where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters.disasters import IMPL, one
from tests.clusters.runs import (
    ASKED,
    CELLS,
    ROOT,
    SIZES,
    TINY,
    WRONG,
    await_cells,
    found,
    judged,
    local,
    result_in,
)
from tests.clusters.slurm import Cluster, why_not
from tests.docs.pages import blocks

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


@pytest.mark.parametrize(
    ("impl", "code", "workers"),
    [("reference", "COMPLETED", 1), (WRONG, "FAILED", 1), (WRONG, "FAILED", 2)],
)
def test_the_verdicts_are_those_of_this_machine(cluster, job, tmp_path, impl, code, workers):
    """Also if processes of the run judge beside each other, with steps of their own."""
    number = job("--impl", impl, *ASKED, *SIZES, "--out", "out", *(["-n", "2"] if workers > 1 else []))

    assert cluster.await_end(number) == code
    assert found(result_in(tmp_path / "out")) == local(tmp_path, impl)
    said = (tmp_path / "log").read_text()
    assert "agent 0 on host" in said
    assert said.count("started 2 agents by Slurm's step") == workers
    assert not cluster.await_nothing()


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
        assert found(result_in(tmp_path / "out")) == local(tmp_path, WRONG)
    finally:
        cluster.start_node("n1")
        cluster.await_idle()
    assert not cluster.await_nothing()


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
        assert not cluster.await_nothing()
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
    assert found(result_in(tmp_path / "out")) == local(tmp_path, WRONG)
    assert judged(tmp_path / "out") == CELLS
    assert not cluster.await_nothing()


@pytest.mark.parametrize(
    ("number", "met"),
    [(2, "REQUEUED"), (3, "TIMEOUT"), (5, "PREEMPTED")],
    ids=["drain", "time limit", "preempted"],
)
def test_a_disaster_costs_no_verdict(cluster, tmp_path, number, met):
    known = local(tmp_path, IMPL, TINY)
    (tmp_path / "run").mkdir()
    row = one(cluster, tmp_path / "run", number, known=known)

    assert row["met"] == met, row
    assert row["well"], row


def test_an_array_job_certifies_in_shards_that_are_merged(cluster, tmp_path, pytestconfig, monkeypatch):
    docs = pytestconfig.rootpath / "docs"
    snippets = {block.title: block.text for block in blocks(docs / "gating.md") if block.title}
    (source,) = [block.text for block in blocks(docs / "certify.md") if block.title == "mine.py"]
    (tmp_path / "adapter.py").write_text(source)
    (tmp_path / "certify.sbatch").write_text(snippets["certify.sbatch"])
    (tmp_path / "merge.sh").write_text(snippets["merge.sh"])
    monkeypatch.setitem(cluster.environment, "PYTHONPATH", str(ROOT))
    path = os.pathsep.join([str(Path(sys.executable).parent), cluster.environment["PATH"]])
    monkeypatch.setitem(cluster.environment, "PATH", path)
    first = cluster.submit(tmp_path / "certify.sbatch", cwd=tmp_path)
    merge = cluster.submit(
        tmp_path / "merge.sh", f"--dependency=afterok:{first}", "--output=merged", cwd=tmp_path
    )

    assert cluster.await_end(merge, limit=1500) == "COMPLETED", (tmp_path / "merged").read_text()
    assert "VERIFIED (merged here, unsigned)" in (tmp_path / "merged").read_text()
    assert not cluster.await_nothing()


def test_the_script_of_the_documentation_runs_as_it_stands(cluster, tmp_path, pytestconfig, monkeypatch):
    docs = pytestconfig.rootpath / "docs"
    (script,) = [block.text for block in blocks(docs / "clusters.md") if block.title == "run.sbatch"]
    (source,) = [block.text for block in blocks(docs / "certify.md") if block.title == "mine.py"]
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
    assert not cluster.await_nothing()


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
