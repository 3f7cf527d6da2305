"""One run three ways: in one process, in two workers, and on the agents of two hosts; the verdicts are the same."""

import subprocess
import sys

import pytest

from pipeconform.report.result import read_result
from tests.attach.networks import ROOT, SWITCH, Network, reason_against
from tests.attach.sites import wait_for

pytestmark = pytest.mark.slow
RUN = [sys.executable, "-m", "pipeconform", "run", "--profile", "core", "--ranks", "1-3"]
RUN += ["--schedules", "1F1B,InterleavedZeroBubble"]
LIMIT = 1500  # seconds


def here(impl, out, *more):
    command = [*RUN, "--impl", impl, "--out", str(out), *more]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


def on_two_hosts(impl, out):
    with Network(2) as network:
        command = [*RUN, "--impl", impl, "--out", str(out), "--attach", f"{SWITCH}:29600"]
        controller = network.start(network.switch, "controller", *command)
        for index, host in enumerate(network.hosts, start=1):
            agents = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=5"]
            agents += ["--master-addr=127.0.0.1", f"--master-port={29500 + index}", "-m", "pipeconform.agent"]
            network.start(host, f"host-{index}", sys.executable, *agents, "--controller", f"{SWITCH}:29600")
        wait_for(lambda: controller.poll() is not None, limit=LIMIT)
        assert controller.returncode in (0, 1), network.said
        wait_for(lambda: all(p.poll() is not None for p in network.processes), limit=60)
        assert [process.returncode for process in network.processes[1:]] == [0, 0]
    return controller.returncode


def statuses(out):
    cells = read_result(out / "result.json").cells
    return {(cell.requirement, cell.schedule, cell.variant): cell.status for cell in cells}


def compared(before, after):
    command = [sys.executable, "-m", "pipeconform", "compare", str(before), str(after)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("impl", ["reference", "pipeconform.reference_impl.faults.scale:NotDivided"])
def test_one_process_two_workers_and_two_hosts_give_the_same_verdicts(impl, tmp_path):
    reason = reason_against()
    if reason:
        pytest.skip(reason)
    alone, workers, hosts = (tmp_path / name for name in ("alone", "workers", "hosts"))
    codes = {here(impl, alone), here(impl, workers, "-n", "2"), on_two_hosts(impl, hosts)}

    assert codes == {0 if impl == "reference" else 1}
    assert len(statuses(alone)) > 150
    assert statuses(alone) == statuses(workers)
    assert statuses(alone) == statuses(hosts)
    for other in (workers, hosts):
        for before, after in ((alone, other), (other, alone)):
            code, said = compared(before / "result.json", after / "result.json")
            assert code == 0, said
