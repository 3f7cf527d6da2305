"""Runs under a real Ray with two nodes on this machine; skipped where Ray is not installed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clusters.runs import ASKED, ROOT, SIZES, TINY, WRONG, await_cells, found, local, result_in

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'pipeconform[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clusters/ray")]


@pytest.fixture(scope="module")
def cluster():
    """A head and one more node, with room on the head for the agents of both."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    try:
        made.add_node(num_cpus=2)
        made.wait_for_nodes()
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def started(cluster, tmp_path):
    """Start ``pipeconform run --on ray`` with these arguments."""
    processes = []

    def start(*arguments):
        command = [sys.executable, "-m", "pipeconform", "run", "--on", "ray", *arguments]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": cluster.address,
            "PIPECONFORM_MARK": str(tmp_path),
        }
        with (tmp_path / "log").open("ab") as log:
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
    print((tmp_path / "log").read_text())


def free_cpus(cluster):
    """The processors that no bundle holds."""
    code = (
        "import ray, os; ray.init(os.environ['RAY_ADDRESS']); print(ray.available_resources().get('CPU', 0))"
    )
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    return float(done.stdout.split()[-1])


def nothing_is_left(cluster, cpus, *, limit=60.0):
    deadline = time.monotonic() + limit
    while free_cpus(cluster) < cpus or agents():
        assert time.monotonic() < deadline, agents()
        time.sleep(1.0)
    return True


def agents():
    """Processes of Ray that serve as agents, by their title."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"ray::Host" in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize(("impl", "code"), [("reference", 0), (WRONG, 1)])
def test_the_verdicts_are_those_of_this_machine(cluster, started, tmp_path, impl, code):
    run = started("--impl", impl, *ASKED, *SIZES, "--out", "out")

    assert run.wait(900) == code
    assert found(result_in(tmp_path / "out")) == local(tmp_path, impl)
    said = (tmp_path / "log").read_text()
    assert "agent 0 on host" in said
    assert "agent 1 on host" in said
    assert nothing_is_left(cluster, 6.0)


def test_a_node_that_dies_costs_no_verdict(cluster, started, tmp_path):
    node = cluster.add_node(num_cpus=2)
    run = started("--impl", WRONG, *TINY, "--min-agents", "3", "--agent-wait", "180", "--out", "out")
    await_cells(tmp_path / "out", 1)
    cluster.remove_node(node, allow_graceful=False)

    assert run.wait(900) == 1
    assert "another is started" in (tmp_path / "log").read_text()
    assert found(result_in(tmp_path / "out")) == local(tmp_path, WRONG, TINY)
    assert nothing_is_left(cluster, 6.0)


def test_a_run_that_is_killed_gives_everything_back(cluster, started, tmp_path):
    run = started("--impl", WRONG, *TINY, "--out", "out")
    await_cells(tmp_path / "out", 1)
    run.kill()
    run.wait()

    assert nothing_is_left(cluster, 6.0)


def test_more_than_the_cluster_has_is_asked_for_and_said(cluster, started, tmp_path):
    """An autoscaler would see what is missing; this cluster has none, so the run ends with a reason."""
    run = started("--impl", "reference", *TINY, "--min-agents", "9", "--agent-wait", "40", "--out", "o")

    assert run.wait(300) == 3
    said = (tmp_path / "log").read_text()
    assert "Ray has no room yet for 9 bundles" in said
    assert "the run needs 9" in said
    assert nothing_is_left(cluster, 6.0)
