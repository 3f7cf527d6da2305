"""Several hosts on one machine: network namespaces joined by a bridge, an agent's launcher in each.

Namespaces and links are made and removed by networks.py; nothing outside of them is touched.
"""

import json
import subprocess
import sys

import pytest

from pipeconform.report.result import read_result
from tests.attach.networks import ROOT, SWITCH, Network, ranks_in, reason_against
from tests.attach.sites import HERE, wait_for

pytestmark = pytest.mark.slow


def torchrun(index, *how):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *how]
    return [*command, "-m", "pipeconform.agent", "--controller", f"{SWITCH}:29600"]


LAUNCHERS = {
    "one job over both hosts": lambda index: torchrun(
        index,
        "--nnodes=2",
        f"--node-rank={index - 1}",
        "--master-addr=10.77.0.11",
        "--master-port=29500",
    ),
    "a job per host that restarts its agents": lambda index: torchrun(
        index, "--nnodes=1", "--master-addr=127.0.0.1", "--master-port=29500", "--max-restarts=20"
    ),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_host_whose_cable_is_pulled_costs_one_verdict_that_names_it(tmp_path, launcher):
    reason = reason_against()
    if reason:
        pytest.skip(reason)
    comes_back = launcher.startswith("a job per host")
    with Network(2) as network:
        told = lambda step: step_of(network.said.get("controller", ()), step)  # noqa: E731
        driver = [sys.executable, str(HERE / "hosts_driver.py"), SWITCH, "29600", "4", str(tmp_path)]
        controller = network.start(network.switch, "controller", *driver)
        for index, host in enumerate(network.hosts, start=1):
            network.start(host, f"host-{index}", *LAUNCHERS[launcher](index))
        wait_for(lambda: told("running") or controller.poll() is not None, limit=180)
        assert told("running"), network.said
        assert told("together")["values"] == ["10.0"] * 4
        assert sorted(told("running")["addresses"]) == ["10.77.0.11"] * 2 + ["10.77.0.12"] * 2
        network.cable(2, "down")
        wait_for(lambda: told("after") or controller.poll() is not None, limit=60)

        assert told("cut"), network.said["controller"]
        assert "on host host-2 (10.77.0.12, " in told("cut")["lost"]
        assert "has been silent for 4 s" in told("cut")["lost"]
        assert "host-1" not in told("cut")["lost"]
        assert told("cut")["first"] in (1, 3)  # ranks alternate between hosts
        assert told("after")["values"] == ["10.0"] * 4
        assert told("after")["agents"] == 2
        wait_for(lambda: not ranks_in(network.inside(network.hosts[1])), limit=60)
        if not comes_back:
            return
        network.cable(2, "up")
        wait_for(lambda: told("back") or controller.poll() is not None, limit=90)
        assert told("back"), network.said
        assert told("back")["agents"] == 4
        assert told("back")["values"] == ["10.0"] * 4
        wait_for(lambda: all(p.poll() is not None for p in network.processes), limit=30)
        assert [process.returncode for process in network.processes] == [0, 0, 0]


def test_a_run_over_three_hosts_gives_the_same_cells_as_on_one_machine(tmp_path):
    reason = reason_against()
    if reason:
        pytest.skip(reason)
    asked = ["--impl", "reference_impl.adapter:ReferenceAdapter", "--schedules", "GPipe,1F1B,Interleaved1F1B"]
    asked += ["--requirements", "FWD-1,TRN-1,TRN-3,LIF-5,SCH-1", "--ranks", "1-3", "--examples", "6"]
    with Network(3) as network:
        run = [sys.executable, "-m", "pipeconform", "run", *asked]
        network.start(
            network.switch,
            "controller",
            *run,
            "--attach",
            f"{SWITCH}:29600",
            "--out",
            str(tmp_path / "attached"),
        )
        for index, host in enumerate(network.hosts, start=1):
            command = [sys.executable, "-m", "pipeconform.agent", "--controller", f"{SWITCH}:29600"]
            network.start(host, f"host-{index}", *command)
        wait_for(lambda: all(p.poll() is not None for p in network.processes), limit=180)
        assert [p.returncode for p in network.processes] == [0] * 4, network.said
    local = subprocess.run(
        [*run, "--out", str(tmp_path / "local")], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert local.returncode == 0, local.stdout
    assert outcomes(tmp_path / "attached") == outcomes(tmp_path / "local")
    place = read_result(tmp_path / "attached" / "result.json").environment
    assert place.device_names == ("attached host-1", "attached host-2", "attached host-3")


def outcomes(folder):
    """By cell its status, and how much was judged."""
    cells = read_result(folder / "result.json").cells
    return {(c.requirement, c.schedule): (c.status, c.judgements, c.distinct_cases) for c in cells}


def step_of(lines, step):
    for line in list(lines):
        if line.startswith("{"):
            found = json.loads(line)
            if found.get("step") == step:
                return found
    return None
