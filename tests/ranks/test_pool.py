"""A pool brings one verdict per rank and is whole again after every disaster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeconform.errors import PoolError
from pipeconform.ranks import Crew, Died, ForkServer, Pool, Raised, Returned, Stuck
from tests.ranks.plain_values import read
from tests.waiting import until

GUARD = 30.0  # seconds no task comes near unless something hangs
LARGE = 20 << 20


@pytest.fixture
def pool(server: ForkServer) -> Iterator[Pool]:
    with Pool(Crew(server, size=2), idle_limit=0.5) as pool:
        yield pool


def run(pool: Pool, task: str, payload: bytes = b"", *, limit: float = GUARD):
    return read(pool.run(f"rank_tasks:{task}", payload, time_limit=limit))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_every_world_size_reduces_over_all_its_ranks(server, size):
    with Pool(Crew(server, size=size)) as pool:
        assert (size * (size + 1) / 2,) * size == run(pool, "total").values


def test_a_task_knows_its_rank_world_and_device(pool):
    payloads = [b"a", b"b"]
    vector = read(pool.run("rank_tasks:rank_of", payloads, time_limit=GUARD))
    assert vector.values == ((0, 2, "cpu", b"a"), (1, 2, "cpu", b"b"))


def test_a_rank_has_one_thread_ignores_ctrl_c_and_is_in_a_gloo_group(pool):
    expected = {"threads": 1, "backend": "gloo", "sigint": True, "variant": None}
    assert (expected, expected) == run(pool, "facts").values


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_no_thread_of_a_rank_crashes_in_silence(pool):
    """A crash where its signal is blocked ends the process before anything is written about it."""
    for threads in run(pool, "blocked_signals").values:
        assert len(threads) > 2
        assert not set.union(*threads) & {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_no_thread_of_a_rank_takes_a_core_by_waking_up(pool):
    assert run(pool, "scheduling_policies").values == ([os.SCHED_BATCH],) * 2


def test_without_a_backend_there_is_no_process_group(server):
    with Pool(Crew(server, size=1, backend=None)) as oracle:
        assert run(oracle, "facts")[0].value["backend"] is None


def test_good_tasks_keep_their_processes(pool):
    assert pool.pids == run(pool, "pid").values == run(pool, "pid").values == pool.pids


def test_subgroups_work(server):
    with Pool(Crew(server, size=4)) as pool:
        assert (2.0, 4.0, 2.0, 4.0) == run(pool, "subgroups").values == run(pool, "subgroups").values


def test_two_pools_run_at_once(server, pool):
    with Pool(Crew(server, size=1, backend=None)) as oracle:
        ours, its = (
            pool.start("rank_tasks:spin_briefly", time_limit=GUARD),
            oracle.start("rank_tasks:return_much", time_limit=GUARD),
        )
        assert (ours.wait().ok, its.wait().ok) == (True, True)


DISASTERS = {
    # task: (type of rank 0's verdict, types possible for rank 1)
    "raise_error": (Raised, (Stuck,)),
    "raise_everywhere": (Raised, (Raised,)),
    "leave": (Raised, (Raised,)),
    "kill_itself": (Died, (Raised, Stuck)),
    "exit_silently": (Died, (Stuck,)),
    "sleep_forever": (Stuck, (Stuck,)),
    "stop_itself": (Stuck, (Returned,)),
    "return_no_bytes": (Raised, (Returned,)),
    "no_such_task": (Raised, (Raised,)),
    "print_much_and_die": (Died, (Died,)),
}


@pytest.mark.parametrize("task", DISASTERS)
def test_after_a_disaster_the_next_task_runs_as_if_nothing_had_happened(pool, survivors, task):
    first, second = DISASTERS[task]
    old = pool.pids
    vector = run(pool, task)
    assert isinstance(vector[0], first), vector.describe()
    assert isinstance(vector[1], second), vector.describe()
    assert not vector.ok
    assert run(pool, "total").values == (3.0, 3.0)
    assert not set(old) & set(pool.pids)
    assert survivors(old) == []


def test_what_a_rank_raises_is_told_in_full(pool):
    raised = run(pool, "raise_error")[0]
    assert (raised.type, raised.message) == ("ValueError", "rank 0 does not like this")
    assert [(cause.type, cause.message) for cause in raised.causes] == [("KeyError", "'missing'")]
    assert "in raise_error" in raised.traceback
    assert "rank.py" not in raised.traceback


def test_what_ranks_raised_and_one_exception_collected_is_its_cause(pool):
    raised = run(pool, "raise_what_was_collected")[0]

    assert raised.type == "torch.distributed.checkpoint.api.CheckpointException"
    assert [(cause.type, cause.message) for cause in raised.causes] == [
        ("RuntimeError", "Missing key in checkpoint state_dict: momentum.")
    ]


def test_an_exception_that_cannot_be_printed_is_still_told(pool):
    raised = run(pool, "raise_rudely")[0]
    assert (
        raised.type,
        raised.message,
    ) == ("rank_tasks.Rude", "(no message: str() of the exception raised RuntimeError)")


def test_leaving_is_not_answering(pool):
    assert run(pool, "leave")[0].type == "SystemExit"


def test_a_killed_rank_is_named_by_its_signal_and_last_words(pool):
    vector = run(pool, "kill_itself")
    assert (vector[0].signal, vector[0].output) == ("SIGKILL", "last words")
    assert vector.first_failure == 0


def test_a_crashed_rank_tells_where_and_what_it_printed_and_no_list_of_modules(pool):
    vector = run(pool, "abort_itself")
    line = vector.describe().splitlines()[0]
    assert line.startswith("rank 0  died      SIGABRT in rank_tasks.py:")
    assert line.endswith("abort_itself; last output: terminate called  <- first failure")
    assert "Extension modules" not in vector.explain()


def test_an_exit_without_an_answer_is_a_death_even_with_code_0(pool):
    assert (run(pool, "exit_silently")[0].signal, run(pool, "exit_silently")[0].exit_code) == (None, 0)


def test_a_peer_blocked_in_a_receive_is_stuck_because_of_who_raised(pool):
    vector = run(pool, "raise_error")
    assert "after rank 0 raised" in vector[1].why
    assert "in _others_wait" in vector[1].stack
    assert "rank.py" not in vector[1].stack


def test_ranks_that_only_wait_are_stuck_by_evidence_with_their_stacks(pool):
    vector = run(pool, "sleep_forever")
    assert all("no rank used CPU time" in verdict.why for verdict in vector)
    assert all("in sleep_forever" in verdict.stack for verdict in vector)


def test_a_stopped_rank_does_not_progress(pool):
    assert "stopped by a signal" in run(pool, "stop_itself")[0].why


def test_a_busy_rank_is_ended_by_the_time_limit_only(pool):
    vector = run(pool, "spin_forever", limit=1.0)
    assert [verdict.why for verdict in vector] == ["time limit of 1 s"] * 2
    assert run(pool, "total").values == (3.0, 3.0)


def test_an_answer_that_came_in_time_counts_however_late_it_is_read(pool):
    """The controller waits for lost agents, or is held up itself, while the oracle has long answered."""
    pool.wait_until_formed()
    pending = pool.start("rank_tasks:echo", b"in time", time_limit=1.0)
    time.sleep(2.0)

    assert pending.wait().values == (b"in time",) * 2


def test_waiting_for_a_computing_peer_is_not_a_hang(pool):
    assert run(pool, "spin_briefly").ok


def test_waiting_for_a_computing_child_process_is_not_a_hang(pool):
    assert run(pool, "child_spins").ok


def test_a_rank_that_closes_its_connection_is_not_waited_for_forever(server):
    with Pool(Crew(server, size=1, backend=None), idle_limit=GUARD) as pool:
        assert "closed its connection" in run(pool, "close_connection")[0].why


def test_a_killed_rank_takes_its_own_processes_along(pool, survivors, tmp_path):
    code = f"import os, time; open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w'); time.sleep(3600)"
    run(pool, "leave_children", code.encode())
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert pids
    assert survivors(pids) == []


def test_a_rank_that_prints_megabytes_returns(pool):
    assert run(pool, "print_much").values == (20, 20)


def test_the_end_of_what_a_dead_rank_printed_is_quoted(pool):
    died = run(pool, "print_much_and_die")[0]
    assert died.output.endswith("the very end")
    assert len(died.output) <= 4096


def test_a_rank_that_prints_without_end_does_not_fill_the_disk(pool):
    assert [type(verdict).__name__ for verdict in run(pool, "print_forever", limit=1.0)] == ["Stuck", "Stuck"]


def test_output_is_forgotten_between_tasks(pool):
    run(pool, "print_much")
    assert "x" not in run(pool, "exit_silently")[0].output


def test_a_rank_may_close_its_output(pool):
    assert (b"quiet",) * 2 == run(pool, "close_stdout").values == run(pool, "close_stdout").values


def test_a_value_that_is_no_bytes_is_named_by_its_type(pool):
    raised = run(pool, "return_no_bytes")[0]
    assert raised.type == "TypeError"
    assert raised.message.endswith("returned a value of type builtins.function; a task returns bytes")


def test_large_values_cross_in_both_directions(pool):
    values = run(pool, "return_much").values
    assert all(value == bytes([rank]) * (50 << 20) for rank, value in enumerate(values))
    payload = os.urandom(LARGE)
    assert (payload, payload) == run(pool, "echo", payload).values


def test_answers_of_another_task_are_never_taken(pool):
    for number in (1, 2, 3):
        assert run(pool, "answer_twice", str(number).encode()).values == (b"fresh", b"fresh")


def test_a_death_between_tasks_does_not_touch_the_next_one(pool, survivors):
    vector = run(pool, "die_after_answering")
    assert vector.ok
    assert survivors([pid for pids in vector.values for pid in pids]) == []
    assert run(pool, "total").values == (3.0, 3.0)


def test_a_death_that_nobody_has_reported_yet_does_not_touch_the_next_task(server, pool, survivors):
    children, ranks = run(pool, "leave_a_child").values, pool.pids
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        assert survivors(ranks) == []
        threading.Timer(0.3, os.kill, (server.pid, signal.SIGCONT)).start()
        assert run(pool, "total").values == (3.0, 3.0)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert survivors(children) == [], "what a rank left behind goes with it"


def test_the_vector_of_a_second_wait_is_the_same(pool):
    pending = pool.start("rank_tasks:pid", time_limit=GUARD)
    assert pending.wait() is pending.wait()


def test_a_busy_pool_takes_no_second_task(pool):
    pending = pool.start("rank_tasks:sleep_forever", time_limit=GUARD)
    with pytest.raises(PoolError, match="still runs 'rank_tasks:sleep_forever'"):
        pool.start("rank_tasks:pid", time_limit=GUARD)
    pending.cancel()
    assert run(pool, "pid").ok


def test_ranks_that_were_ready_while_another_pool_waited_are_not_waited_for(server, pool, monkeypatch):
    """Their words have been read already, and nothing more comes that would end a wait."""
    with Pool(Crew(server, size=1)) as other:
        other.wait_until_formed()
        pool.restart()
        group = pool._crew.group
        while group.pids is None or not all(channel.frames for channel in group.channels):
            run(other, "empty")

        monkeypatch.setattr(server, "step", lambda timeout: timeout and pytest.fail(f"waits {timeout} s"))
        assert len(pool.wait_until_formed()) == 2
        monkeypatch.undo()


def test_a_cancelled_task_has_no_verdicts(pool):
    pending = pool.start("rank_tasks:sleep_forever", time_limit=GUARD)
    pending.cancel()
    with pytest.raises(PoolError, match="cancelled"):
        pending.wait()


def test_a_task_that_nobody_waits_for_is_ended_by_the_next(pool, survivors):
    old = pool.pids
    pool.start("rank_tasks:sleep_forever", time_limit=GUARD)
    assert run(pool, "total").values == (3.0, 3.0)
    assert survivors(old) == []


def test_a_closed_pool_says_so(server, survivors):
    pool = Pool(Crew(server, size=1))
    pids = pool.pids
    pool.close()
    pool.close()
    with pytest.raises(PoolError, match="the pool is closed"):
        run(pool, "pid")
    assert survivors(pids) == []


def test_a_forgotten_pool_ends_its_processes(server, survivors):
    pids = Pool(Crew(server, size=2)).pids
    assert survivors(pids) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"task": "no colon"}, "'module:function'"),
        ({"task": "a:b", "payloads": [b""]}, "one payload or 2"),
    ],
)
def test_a_wrong_task_is_the_callers_error(pool, arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        pool.start(**arguments, time_limit=GUARD)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [({"size": 0}, "at least one rank"), ({"size": 2, "devices": ["cpu"]}, "as many devices")],
)
def test_a_wrong_pool_is_the_callers_error(server, arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        Pool(Crew(server, **arguments))


def test_a_backend_nobody_knows_is_a_pool_error_with_the_reason(server):
    with Pool(Crew(server, size=2, backend="nonsense")) as pool, pytest.raises(PoolError, match="nonsense"):
        run(pool, "pid")


def test_disasters_leave_nothing_behind(server, descriptors):
    def processes() -> int:
        return sum(
            len(Path(f"/proc/{server.pid}/task/{thread}/children").read_text().split())
            for thread in os.listdir(f"/proc/{server.pid}/task")
        )

    def state() -> tuple[int, ...]:
        pool.wait_until_formed()
        return processes(), descriptors(), len(os.listdir(server.folder)), descriptors_of_server()

    def descriptors_of_server() -> int:
        return len(os.listdir(f"/proc/{server.pid}/fd"))

    with Pool(Crew(server, size=2), idle_limit=0.5) as pool:
        run(pool, "kill_itself")
        before = state()
        for _ in range(15):
            for task in ("raise_everywhere", "kill_itself"):
                assert not run(pool, task).ok
        # what is being cleared away is not left behind
        until(lambda: state() == before, limit=GUARD, told=lambda: (before, state()))


def test_memory_stays_flat(pool):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    for _ in range(100):
        run(pool, "empty")
    before = resident()
    for _ in range(2000):
        run(pool, "empty")
    assert resident() - before < 2 << 20
