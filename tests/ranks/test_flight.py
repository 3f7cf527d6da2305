"""What torch's flight recorder says is read as its format says, and told in a hang's explanation."""

from __future__ import annotations

from typing import Any

import pytest

from pipeconform.ranks import Crew, Environment, Pool, Stuck
from pipeconform.ranks.flight import SIZE, Flight, flights_in
from tests.facts import tells

# As a build of torch with NCCL writes it, by the format's description; the operations of a rank of a world of four.
NCCL: dict[str, Any] = {
    "version": "2.10",
    "pg_config": {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
        "1": {"name": "1", "desc": "undefined", "ranks": "[1, 3]"},
    },
    "pg_status": {},
    "entries": [],
}


def entry(name: str, **changes: Any) -> dict[str, Any]:
    made = {
        "record_id": 0,
        "process_group": ("1", "undefined"),
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[2, 3]],
        "input_dtypes": ["Float"],
        "output_sizes": [[2, 3]],
        "output_dtypes": ["BFloat16"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": True,
    }
    return {**made, **changes}


def read(*entries: dict[str, Any], rank: int = 1) -> tuple[Flight, ...]:
    return flights_in({**NCCL, "entries": list(entries)}, rank=rank)


def test_sends_and_receives_name_the_peer_as_a_rank_of_the_world() -> None:
    found = read(entry("send 0->1", record_id=4), entry("recv 0<-1", record_id=5, state="started"))

    assert found == (
        Flight(words="send of float32[2, 3] to rank 3", state="scheduled", peers=(3,), record=4),
        Flight(words="receive of bfloat16[2, 3] from rank 3", state="started", peers=(3,), record=5),
    )
    send, receive = map(str, found)
    assert tells(send, "send of float32[2, 3] to rank 3", "not begun")
    assert tells(receive, "receive of bfloat16[2, 3] from rank 3", "begun", "not ended")
    assert "not begun" not in receive


def test_collectives_need_all_other_members() -> None:
    (one,) = read(entry("all_reduce", process_group=("0", "default_pg"), is_p2p=False))

    assert (one.words, one.peers) == ("all_reduce of float32[2, 3]", (0, 2, 3))


def test_what_has_ended_is_left_out_and_the_oldest_comes_first() -> None:
    found = read(
        entry("recv 0<-1", record_id=9),
        entry("recv 0<-1", record_id=7, state="completed"),
        entry("recv 0<-1", record_id=8, retired=True),
        entry("coalesced", record_id=3),
        entry("send 0->1", record_id=2),
        *(entry("send 0->1", record_id=10 + k) for k in range(20)),
    )

    assert [one.record for one in found] == [2, 9, *range(10, 16)]


def test_what_is_not_as_the_format_says_is_left_out() -> None:
    assert flights_in({}, rank=0) == ()
    assert flights_in({"entries": ["?", {"state": "scheduled"}], "pg_config": 3}, rank=0) == ()
    (one,) = read(entry("recv 0<-1", process_group=None, output_sizes=None))
    assert tells(one.words, "receive of nothing", "from rank 1 of its group")
    assert one.peers == ()
    (one,) = flights_in({"entries": [entry("recv 0<-1")], "pg_config": {"1": {"ranks": "[0-3]"}}}, rank=0)
    assert one.peers == ()


@pytest.mark.parametrize("task", ["half_a_collective", "polled_collective"])
def test_a_hang_that_only_the_recorder_of_torch_saw_is_told(start_server, task) -> None:
    """Gloo records collectives in the same form, so a dump that torch really made is read."""
    recorded = Environment("recorded", {SIZE: "100"})
    server = start_server(recorded, preload=("torch", "torch.distributed"))
    pool = Pool(Crew(server, size=2), idle_limit=0.5)
    try:
        vector = pool.run(f"hanging_ranks:{task}", time_limit=120.0)
    finally:
        pool.close()

    assert isinstance(vector[0], Stuck), vector.describe()
    assert isinstance(vector[1], Stuck)
    assert vector[0].flights == ("all_reduce of float32[2, 3], not begun",)
    assert vector[1].flights == ()
    assert "rank 0, flight recorder: all_reduce of float32[2, 3], not begun" in vector.waiting.splitlines()
    assert vector[0].waits.startswith("all_reduce")
    assert vector.waiting.endswith("a circle: rank 0 waits for rank 1 waits for rank 0")
