"""Attached ranks over links that are slow, lose packets, stall and are cut: by netem, or by a switch in user space.

The links carry everything: what controller and agents say, and what ranks send one another.
"""

import subprocess
import sys
import time

import pytest

from pipeconform.report.result import read_result
from tests.attach.networks import (
    ROOT,
    SWITCH,
    Network,
    Switched,
    ranks_in,
    reason_against_netem,
    reason_against_taps,
)
from tests.attach.sites import HERE, wait_for
from tests.attach.test_hosts import step_of

pytestmark = pytest.mark.slow
ASKED = [
    *("--impl", "reference_impl.adapter:ReferenceAdapter", "--schedules", "GPipe,1F1B"),
    *("--requirements", "FWD-1,TRN-1", "--ranks", "2", "--examples", "2"),
]
MEANS = {"netem": (Network, reason_against_netem), "switch": (Switched, reason_against_taps)}


@pytest.fixture
def hosts(request):
    """Two hosts and a controller's, by the means that the test names; skipped where they cannot be had."""
    kind, reason_against = MEANS[getattr(request, "param", "switch")]
    reason = reason_against()
    if reason:
        pytest.skip(reason)
    with kind(2) as network:
        yield network


def start_run(network, out):
    command = [sys.executable, "-m", "pipeconform", "run", *ASKED, "--out", str(out)]
    controller = network.start(network.switch, "controller", *command, "--attach", f"{SWITCH}:29600")
    for index, host in enumerate(network.hosts, start=1):
        command = [sys.executable, "-m", "pipeconform.agent", "--controller", f"{SWITCH}:29600"]
        network.start(host, f"host-{index}", *command)
    return controller


def outcomes(folder):
    cells = read_result(folder / "result.json").cells
    return {(c.requirement, c.schedule): (c.status, c.judgements, c.distinct_cases) for c in cells}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the same run gives on this machine."""
    out = tmp_path_factory.mktemp("local")
    command = [sys.executable, "-m", "pipeconform", "run", *ASKED, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return outcomes(out)


BAD = [
    {"delay": 50},
    {"delay": 200},
    {"delay": 10, "loss": 3},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: " ".join(f"{k} {v}" for k, v in bad.items()))
@pytest.mark.parametrize("hosts", MEANS, indirect=True)
def test_slow_and_lossy_links_change_no_verdict(hosts, bad, tmp_path, undisturbed):
    hosts.spoil(**bad)
    begun = time.monotonic()
    controller = start_run(hosts, tmp_path / "out")
    wait_for(lambda: all(p.poll() is not None for p in hosts.processes), limit=400)

    assert [p.returncode for p in hosts.processes] == [0, 0, 0], hosts.said
    assert controller.returncode == 0
    assert outcomes(tmp_path / "out") == undisturbed
    assert not [line for line in hosts.said["controller"] if "lost agent" in line]
    # a link that was not spoilt at all would make this test one of nothing
    assert time.monotonic() - begun > 20 * bad["delay"] / 1000


def test_a_link_that_stalls_for_a_moment_changes_no_verdict(hosts, tmp_path, undisturbed):
    hosts.spoil(delay=20)
    start_run(hosts, tmp_path / "out")
    wait_for(lambda: len(ranks_in(hosts.inside(hosts.hosts[1]))) >= 2, limit=120)
    hosts.order("hold", hosts.hosts[1])
    time.sleep(3.0)
    hosts.order("free", hosts.hosts[1])
    wait_for(lambda: all(p.poll() is not None for p in hosts.processes), limit=200)

    assert [p.returncode for p in hosts.processes] == [0, 0, 0], hosts.said
    assert outcomes(tmp_path / "out") == undisturbed
    assert not [line for line in hosts.said["controller"] if "lost agent" in line]


@pytest.mark.parametrize("order", ["hold", "cut"])
def test_a_link_that_stalls_for_good_costs_one_verdict_that_names_the_host(hosts, tmp_path, order):
    hosts.spoil(delay=20)
    driver = [sys.executable, str(HERE / "hosts_driver.py"), SWITCH, "29600", "4", str(tmp_path)]
    controller = hosts.start(hosts.switch, "controller", *driver)
    told = lambda step: step_of(hosts.said["controller"], step)  # noqa: E731
    for rank in range(4):
        command = [sys.executable, "-m", "pipeconform.agent", "--controller", f"{SWITCH}:29600"]
        numbers = ["env", f"RANK={rank}", f"LOCAL_RANK={rank % 2}", f"GROUP_RANK={rank // 2}"]
        hosts.start(hosts.hosts[rank // 2], f"agent-{rank}", *numbers, *command)
    wait_for(lambda: told("running") or controller.poll() is not None, limit=180)
    assert told("running"), hosts.said
    hosts.order(order, hosts.hosts[1])
    wait_for(lambda: told("after") or controller.poll() is not None, limit=90)

    assert told("cut"), hosts.said["controller"]
    assert "(10.77.0.12, " in told("cut")["lost"]
    assert "has been silent for 4 s" in told("cut")["lost"]
    assert told("cut")["seconds"] < 30
    assert told("after") == {"step": "after", "values": ["10.0"] * 4, "agents": 2}
    wait_for(lambda: not ranks_in(hosts.inside(hosts.hosts[1])), limit=90)
