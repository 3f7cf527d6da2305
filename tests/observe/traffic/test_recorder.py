"""Memory in flight is guarded, and what is let go keeps no connection open."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipeconform.observe.traffic import recorder as traffic
from pipeconform.observe.traffic.due import Neighbours
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.on_ranks import run_on_ranks


def recorded(body: Callable[[int], Any]) -> Traffic:
    recorder = traffic.TrafficRecorder(given=dist.group.WORLD)
    with recorder.recording():
        body(dist.get_rank())
    return recorder.traffic()


def of_ranks(body: Callable[[int], Any]) -> list[Traffic]:
    vector = run_on_ranks(recorded, body, ranks=2)
    assert vector.ok, vector.describe()
    return list(vector.values)


def test_who_reads_before_the_wait_reads_poison() -> None:
    def early(rank: int) -> tuple[list[float], list[float]]:
        value = torch.full((2,), 5.0 if rank == 0 else 1.0)
        with traffic.TrafficRecorder().recording():
            if rank == 0:
                dist.send(value, 1)
                return [], []
            work = dist.irecv(value, 0)
            before = value.tolist()
            work.wait()
        return before, value.tolist()

    def body() -> tuple[list[float], list[float]]:
        return early(dist.get_rank())

    before, after = run_on_ranks(body, ranks=2).values[1]
    assert all(number != number for number in before)
    assert after == [5.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_every_dtype_and_shape_arrives_through_the_guard(dtype: torch.dtype) -> None:
    def body() -> list[Any]:
        found = []
        with traffic.TrafficRecorder().recording():
            for shape in ((), (3,), (2, 0), (1, 2, 1)):
                value = torch.ones(shape, dtype=dtype)
                if dist.get_rank() == 0:
                    dist.send(value, 1)
                else:
                    value = torch.zeros(shape, dtype=dtype)
                    dist.recv(value, 0)
                found.append(value.tolist())
        return found

    first, second = run_on_ranks(body, ranks=2).values
    assert first == second


def test_memory_that_changes_in_flight_is_found() -> None:
    def body(rank: int) -> None:
        value, done = torch.ones(2), torch.ones(2)
        if rank == 0:
            works = [dist.isend(value, 1), dist.isend(done, 1)]
            value.add_(1)
        else:
            works = [dist.irecv(value, 0), dist.irecv(done, 0)]
            done.zero_()
        for work in works:
            work.wait()

    first, second = of_ranks(body)
    assert first.overwritten == (0,)
    assert second.overwritten == (1,)


def test_what_is_let_go_keeps_no_connection_open() -> None:
    def body(rank: int) -> str:
        group = dist.new_group([0, 1], timeout=timedelta(seconds=10))
        recorder = traffic.TrafficRecorder(guard=False)
        with recorder.recording():
            dist.barrier(group)
            if rank == 0:
                dist.irecv(torch.ones(1), 1, group=group)  # never waited for
                recorder.neighbours = Neighbours(  # as a worker's: by the plan, which has the group
                    rank=0,
                    owners=(),
                    dtype="",
                    trains=lambda step, group=group: group is None,
                    order=lambda step, stage, back: (),
                )
                recorder.let_go()
                dist.destroy_process_group(group)
                del group
                gc.collect()
                dist.barrier()
                return ""
            with pytest.raises(RuntimeError) as found:
                dist.recv(torch.ones(2), 0, group=group)
            dist.barrier()
            return str(found.value)

    vector = run_on_ranks(lambda: body(dist.get_rank()), ranks=2)
    assert vector.ok, vector.describe()
    assert "by peer" in vector.values[1].lower()
