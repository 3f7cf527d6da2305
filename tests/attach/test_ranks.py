"""Attached ranks do what ranks of this machine do, and come to the same verdicts."""

import os

import pytest

from pipeconform.ranks import Died, Environment, Raised, Returned, Stuck
from pipeconform.ranks.wire import Kind
from tests.attach.sites import WITHOUT_TORCH

LIMIT = 30.0


def run(pools, size, task, payload=b""):
    return pools.of_size(size).run(f"attach_tasks:{task}", payload, time_limit=LIMIT)


def test_ranks_know_their_world_and_get_their_payload(attached):
    vector = run(attached, 2, "who", b"hello")

    assert vector.values == (b"0 of 2 on cpu: hello", b"1 of 2 on cpu: hello")


def test_ranks_of_one_world_stand_on_different_agents(attached):
    servers = run(attached, 2, "parent").values

    assert len(set(servers)) == 2


def test_worlds_larger_than_the_number_of_agents_share_them(attached):
    assert run(attached, 3, "total").values == (b"6.0",) * 3


def test_subgroups_work_across_agents(attached):
    assert run(attached, 3, "subgroups").values == (b"2.0", b"1.0", b"2.0")


def test_ranks_stay_warm_between_tasks_and_are_new_after_a_restart(attached):
    first, second = run(attached, 2, "pid").values, run(attached, 2, "pid").values
    attached.of_size(2).restart()

    assert first == second
    assert not set(first) & set(run(attached, 2, "pid").values)


def test_a_large_payload_and_answer_cross_whole(attached):
    payload = os.urandom(5 << 20)

    assert run(attached, 2, "large", payload).values == (payload[::-1],) * 2


def test_what_is_not_bytes_is_not_pickled(attached):
    verdict = run(attached, 1, "no_bytes")[0]

    assert isinstance(verdict, Raised)
    assert "a task returns bytes" in verdict.message


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (77, "a frame of kind 77"),
        (Kind.READY, "a frame of kind READY"),
        (Kind.STORE, "a frame of kind STORE"),
        (Kind.RAISED, "something other than Raised"),
    ],
)
def test_what_is_no_answer_is_its_ranks_failure_and_its_agent_goes_on(two_agents, kind, said):
    """The judged code can write to its rank's socket."""
    agents = [process.pid for process in two_agents[0].processes]
    with two_agents[1].pools(preload=WITHOUT_TORCH) as pools:
        pool = pools.bare(2, backend=None)
        vector = pool.run("attach_tasks:send_a_frame", b"%d \xc1\xc1" % kind, time_limit=LIMIT)
        assert isinstance(vector[0], Raised)
        assert said in vector[0].message
        assert vector[1] == Returned(value=b"fine", after=vector[1].after)
        assert pool.run("attach_tasks:who", time_limit=LIMIT).values[0] == b"0 of 2 on cpu: "
        pool.close()

    assert [process.pid for process in two_agents[0].processes if process.poll() is None] == agents
    assert len(two_agents[0].hub.agents) == 2


def test_an_exception_crosses_with_its_traceback_and_the_waiting_rank_is_given_up(attached):
    vector = run(attached, 2, "raise_error")

    assert isinstance(vector[0], Raised)
    assert (vector[0].type, vector[0].message) == ("ValueError", "rank 0 does not like this")
    assert "attach_tasks.py" in vector[0].traceback
    assert isinstance(vector[1], Stuck | Raised)
    assert vector.first_failure == 0
    assert run(attached, 2, "total").ok


def test_a_rank_that_dies_costs_that_rank_and_not_its_agent(two_agents, attached):
    agents = [process.pid for process in two_agents[0].processes]
    vector = run(attached, 2, "kill_itself")

    assert isinstance(vector[0], Died)
    assert (vector[0].signal, vector[0].output) == ("SIGKILL", "last words")
    assert vector.first_failure == 0
    assert run(attached, 2, "total").ok
    assert [process.pid for process in two_agents[0].processes if process.poll() is None] == agents


def test_a_circle_of_receives_is_a_hang_with_stacks_output_and_who_waits_for_whom(attached):
    vector = run(attached, 2, "circle")

    for rank in range(2):
        verdict = vector[rank]
        assert isinstance(verdict, Stuck)
        assert "in circle" in verdict.stack
        assert "ranks/rank.py" not in verdict.stack
        assert verdict.output == "before the circle"
        assert verdict.waits_for == (1 - rank,)
        assert verdict.seconds < LIMIT / 2


def test_a_rank_that_waits_for_one_that_computes_is_no_hang(attached):
    assert run(attached, 2, "spin").values == (b"done", b"done")


def test_the_launchers_world_is_not_the_ranks(attached):
    for name in ("RANK", "MASTER_ADDR", "PIPECONFORM_TOKEN"):
        assert run(attached, 1, "variable", name.encode()).values == (b"(unset)",)


def test_an_environment_variant_reaches_the_ranks(two_agents):
    environment = Environment("special", {"PIPECONFORM_TEST": "yes"})
    with two_agents[1].pools(environment, preload=WITHOUT_TORCH) as pools:
        pool = pools.bare(1, backend=None)
        vector = pool.run("attach_tasks:variable", b"PIPECONFORM_TEST", time_limit=LIMIT)
        pool.close()

    assert vector.values == (b"yes",)


def test_pools_that_ask_for_the_same_share_the_fork_servers_of_the_agents(two_agents):
    def servers(environment=None):
        with two_agents[1].pools(environment, preload=WITHOUT_TORCH) as pools:
            pool = pools.bare(2, backend=None)
            vector = pool.run("attach_tasks:parent", time_limit=LIMIT)
            pool.close()
        return set(vector.values)

    first = servers()

    assert servers() == first
    assert not servers(Environment("another", {"PIPECONFORM_TEST": "yes"})) & first


def test_ranks_listen_at_the_address_of_their_agent_and_nowhere_else(attached):
    """Torch's own store would listen on all interfaces."""
    run(attached, 2, "total")
    first = int(run(attached, 2, "pid").values[0])

    assert listening(first, "tcp") == {"0100007F"}
    assert listening(first, "tcp6") == set()


def listening(pid, table):
    """The addresses, as the kernel writes them, on which a process listens."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    with open(f"/proc/net/{table}") as rows:
        found = [line.split() for line in rows.readlines()[1:]]
    return {row[1].partition(":")[0] for row in found if row[3] == "0A" and row[9] in inodes}
