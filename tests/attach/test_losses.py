"""What is lost when an agent is: one verdict, and nobody waits for it."""

import os
import signal
import time
from pathlib import Path

import pytest

from pipeconform.errors import TooFewAgentsError
from pipeconform.ranks import Died
from tests.attach.sites import PRELOAD, WITHOUT_TORCH, controller_of, wait_for

LIMIT = 60.0
WHO = (b"0 of 2 on cpu: ", b"1 of 2 on cpu: ")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def duo(site):
    """Two agents and pools that wait up to 20 s for a lost one."""

    def make(*, least=2, patience=20.0, **how):
        here = site(**how)
        for rank in range(2):
            here.start(rank)
        controller = controller_of(here, least=least, patience=patience)
        here.await_agents(2)
        controller.gather(limit=LIMIT)
        return here, controller

    return make


def ranks_in(folder, number):
    """The process ids of ranks that run `child_and_sleep`, and of their children."""
    files = [folder / str(rank) for rank in range(number)]
    texts = [file.read_text().split() for file in files if file.is_file()]
    return [int(pid) for text in texts for pid in text] if all(len(t) == 2 for t in texts) else []


def start_and_wait(here, pool, folder, number=2):
    pending = pool.start("attach_tasks:child_and_sleep", str(folder).encode(), time_limit=LIMIT)
    here.step_until(lambda: len(ranks_in(folder, number)) == 2 * number)
    return pending, ranks_in(folder, number)


def test_an_agent_killed_in_a_case_costs_one_verdict_that_names_host_rank_and_cause(duo, tmp_path):
    here, controller = duo()
    with controller.pools(preload=PRELOAD) as pools:
        pool = pools.bare(2)
        pending, pids = start_and_wait(here, pool, tmp_path)
        victim = here.processes[1]
        victim.kill()
        vector = pending.wait()

        lost = vector[1]
        assert isinstance(lost, Died)
        host = os.uname().nodename
        assert f"agent 1 on host {host} (127.0.0.1, pid {victim.pid}): its connection was closed" in lost.lost
        assert vector.first_failure == 1
        assert vector.lost == lost.lost
        assert f"lost: agent 1 on host {host}" in vector.describe()
        here.start(1)
        assert pool.run("attach_tasks:total", time_limit=LIMIT).values == (b"3.0", b"3.0")
        assert any("re-join" in line for line in here.lines)
        pool.close()
    wait_for(lambda: not any(map(alive, pids)))


def test_a_case_that_lost_its_host_is_executed_once_more_and_judged_by_that(duo, tmp_path):
    here, controller = duo()
    with controller.pools(preload=PRELOAD) as pools:
        pool = pools.of_size(2)
        assert pool.run("attach_tasks:total", time_limit=LIMIT).ok
        os.kill(here.processes[0].pid, signal.SIGSTOP)  # so that it cannot answer before it is killed
        here.start(0)
        here.await_agents(3)
        killed = []

        def kill_it(text, say=here.lines.append):
            say(text)

        def step(timeout, inner=here.hub.step):
            if any(agent.busy for agent in here.hub.agents) and not killed:
                killed.append(here.processes[0].kill())
            inner(timeout)

        here.hub.step = step
        vector = pool.run("attach_tasks:total", time_limit=LIMIT)

    assert killed
    assert vector.values == (b"3.0", b"3.0")
    assert any("is executed once more; it lost agent 0" in line for line in here.lines)


def test_an_agent_that_hangs_is_lost_after_the_silence_and_nobody_waits_longer(duo, tmp_path):
    """Its host says nothing any more, as behind a cut cable: no end of file, no reset."""
    here, controller = duo(least=1, patience=0.1, silence=2.0)
    with controller.pools(preload=WITHOUT_TORCH) as pools:
        pool = pools.bare(2, backend=None)
        pending, _ = start_and_wait(here, pool, tmp_path)
        os.kill(here.processes[1].pid, signal.SIGSTOP)
        vector = pending.wait()
        here.processes[1].kill()

        assert "agent 1 on host" in vector.lost
        assert "has been silent for 2 s" in vector.lost
        assert pool.run("attach_tasks:who", time_limit=LIMIT).values == WHO
        assert any("goes on with 1 of 2 agents" in line for line in here.lines)
        pool.close()


def test_below_the_minimum_a_run_stops_and_says_so(duo):
    here, controller = duo(patience=0.2)
    with controller.pools(preload=WITHOUT_TORCH) as pools:
        here.processes[0].kill()
        here.await_agents(1)

        with pytest.raises(TooFewAgentsError, match=r"1 agent\(s\) attached at .* the run needs 2"):
            pools.of_size(1).run("attach_tasks:who", time_limit=LIMIT)


def test_no_agents_at_all_stop_a_run_before_it_begins(site):
    with pytest.raises(TooFewAgentsError, match=r"0 agent\(s\) attached"):
        controller_of(site(), least=1).gather(limit=0.1)


def test_a_fork_server_that_ends_is_lost_too_and_no_fault_of_the_ranks(duo, tmp_path):
    here, controller = duo()
    with controller.pools(preload=WITHOUT_TORCH) as pools:
        pool = pools.bare(2, backend=None)
        pending, pids = start_and_wait(here, pool, tmp_path)
        server = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(server, signal.SIGKILL)
        vector = pending.wait()

        assert vector.first_failure == 0
        assert "agent 0 on host" in vector.lost
        assert "the fork server ended" in vector.lost
        assert pool.run("attach_tasks:who", time_limit=LIMIT).values == WHO
        pool.close()
    wait_for(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("how", ["home", "killed", "terminated"])
def test_nothing_is_left_of_ranks_and_their_children_when_the_controller_or_the_agents_end(
    duo, tmp_path, how
):
    here, controller = duo(least=2)
    with controller.pools(preload=WITHOUT_TORCH) as pools:
        pool = pools.bare(2, backend=None)
        pending, pids = start_and_wait(here, pool, tmp_path)
        servers = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
        assert all(map(alive, pids))
        if how == "home":
            here.hub.close()
        for process in here.processes:
            if how == "killed":
                process.kill()
            elif how == "terminated":
                process.terminate()
        codes = {process.wait(20) for process in here.processes}
        pending.cancel()

    assert codes == {{"home": 0, "killed": -signal.SIGKILL, "terminated": 128 + signal.SIGTERM}[how]}
    wait_for(lambda: not any(map(alive, [*pids, *servers])))


def test_time_is_told_on_the_controllers_clock(duo):
    """An agent's moments are seconds since it handed the task over: clocks of hosts are not compared."""
    _here, controller = duo()
    with controller.pools(preload=WITHOUT_TORCH) as pools:
        pool = pools.bare(2, backend=None)
        pool.wait_until_formed()
        begun = time.monotonic()
        vector = pool.run("attach_tasks:compute", time_limit=LIMIT)
        ended = time.monotonic()
        pool.close()

    assert all(0 < verdict.after <= ended - begun for verdict in vector)
    assert vector[0].after > 0.4
