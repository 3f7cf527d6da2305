"""Everything that a rank communicates is recorded, whatever API it used."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PythonCallbackWork
from torch.distributed import _functional_collectives as functional
from torch.utils._python_dispatch import TorchDispatchMode

from pipeconform.ranks.on_ranks import run_on_ranks
from pipeconform.ranks.operations import Moment, Operation
from pipeconform.ranks.recording.recorder import Recorder, pending
from tests.facts import tells


@dataclass(frozen=True)
class Found:
    """What a rank recorded."""

    operations: list[Operation]
    moments: list[Moment]
    groups: dict[str, tuple[int, ...]]
    world: str


def recorded(body: Callable[[int], Any]) -> Found:
    recorder = Recorder()
    with recorder.recording():
        body(dist.get_rank())
    return Found(recorder.operations, recorder.moments, recorder.groups, dist.group.WORLD.group_name)


def of_ranks(body: Callable[[int], Any], *, ranks: int = 2) -> list[Found]:
    vector = run_on_ranks(recorded, body, ranks=ranks)
    assert vector.ok, vector.describe()
    return list(vector.values)


def test_functions_are_recorded_with_peer_tag_and_layout() -> None:
    def body(rank: int) -> None:
        value = torch.zeros(2, 3, dtype=torch.float64)
        if rank == 0:
            dist.send(value, 1, tag=7)
        else:
            dist.recv(value, 0, tag=7)

    first, second = of_ranks(body)
    (send,), (receive,) = first.operations, second.operations
    assert tells(str(send), "send of float64[2, 3]", "to rank 1", "tag 7", "operation 0")
    assert tells(str(receive), "receive of float64[2, 3]", "from rank 0", "tag 7", "operation 0")
    assert (send.num_bytes, send.batch, send.group) == (48, -1, first.world)
    assert [moment.kind for moment in first.moments] == ["issue", "wait"]


def test_group_rank_and_rank_of_the_world_are_both_known() -> None:
    def body(rank: int) -> None:
        group = dist.new_group([1, 2])
        if rank:
            value = torch.zeros(1)
            (dist.send if rank == 1 else dist.recv)(value, 3 - rank, group=group)
            dist.barrier(group)
            dist.destroy_process_group(group)

    _, first, second = of_ranks(body, ranks=3)
    send, receive = first.operations[0], second.operations[0]
    assert (send.peer, send.process) == (1, 2)
    assert (receive.peer, receive.process) == (0, 1)
    assert first.groups[send.group] == (1, 2)
    assert send.group != first.world


def test_batches_are_told_apart() -> None:
    def body(rank: int) -> None:
        other = 1 - rank
        for _ in range(2):
            ops = [
                dist.P2POp(dist.isend, torch.ones(1), other),
                dist.P2POp(dist.irecv, torch.ones(1), other),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        work = dist.isend(torch.ones(1), other)
        dist.recv(torch.ones(1), other)
        work.wait()

    for found in of_ranks(body):
        assert [one.batch for one in found.operations] == [0, 0, 1, 1, -1, -1]
        order = [(moment.kind, moment.operation) for moment in found.moments]
        assert order[:4] == [("issue", 0), ("issue", 1), ("wait", 0), ("wait", 1)]
        assert order[8:] == [("issue", 4), ("issue", 5), ("wait", 5), ("wait", 4)]


def test_what_is_coalesced_ends_with_the_work_of_the_batch() -> None:
    """As with NCCL: the work object comes from the end of the batch, and those of its operations are dropped."""

    def body() -> tuple[list[int], list[tuple[str, int]]]:
        rank, group, recorder = dist.get_rank(), dist.group.WORLD, Recorder()
        unseen = dist.Work.wait  # as a backend waits, in C++
        assert group is not None
        with recorder.recording():
            recorder.coalescing(group)
            parts = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.ones(1), 1 - rank)]
            batch = PythonCallbackWork(lambda timeout: all(unseen(one) for one in parts))
            recorder.coalesced(group, batch)
            assert len(recorder.pending()) == 2
            batch.wait()
            assert not recorder.pending()
            dist.all_reduce(torch.ones(1))
        batches = [one.batch for one in recorder.operations]
        return batches, [(moment.kind, moment.operation) for moment in recorder.moments]

    vector = run_on_ranks(body, ranks=2)
    assert vector.ok, vector.describe()
    batches, moments = vector.values[0]
    assert batches == [0, 0, -1]
    assert moments[:4] == [("issue", 0), ("issue", 1), ("wait", 0), ("wait", 1)]


_CALLED_IN_C = {"all_reduce": "allreduce_", "all_gather_into_tensor": "allgather_into_tensor_coalesced_"}
"""What functional collectives call, unseen by a dispatch mode, which sees the functional ones themselves."""


class _Seen(TorchDispatchMode):
    """The names of all ``c10d`` operators, as torch's own dispatch mode sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if function.namespace == "c10d":
            self.names.append(name)
        elif function.namespace == "_c10d_functional" and name in _CALLED_IN_C:
            self.names.append(_CALLED_IN_C[name])
        return function(*args, **(kwargs or {}))


def everything(rank: int) -> None:
    """Every way to communicate that this torch has on two ranks with gloo."""
    other, group, value = 1 - rank, dist.group.WORLD, torch.ones(2)
    several = [torch.ones(2), torch.ones(2)]
    if rank:
        dist.send(value, other)
    else:
        dist.recv(value)
    ops = [dist.P2POp(dist.isend, value, other), dist.P2POp(dist.irecv, torch.ones(2), other)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    works = [group.send([value], other, 3), group.recv([torch.ones(2)], other, 3)]
    assert all(work.wait() for work in works)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    while not work.is_completed():
        time.sleep(0)
    dist.send_object_list([1], other) if rank else dist.recv_object_list([0], other)
    dist.all_reduce(value)
    dist.broadcast(value, 0)
    dist.reduce(value, 1)
    dist.all_gather(several, value)
    dist.all_gather_into_tensor(torch.ones(4), value)
    dist.gather(value, several if rank == 0 else None, 0)
    dist.scatter(value, several if rank == 0 else None, 0)
    dist.reduce_scatter(value, several)
    dist.all_to_all_single(torch.ones(2), value)
    dist.all_to_all([torch.ones(1), torch.ones(1)], [torch.ones(1), torch.ones(1)])
    dist.barrier()
    dist.monitored_barrier()
    group.allreduce([value]).wait()
    found = functional.all_reduce(value, "sum", group)
    assert (found + 0).tolist() == (2 * value).tolist()
    functional.all_gather_tensor(value, 0, group).sum()
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()


def cross_checked() -> tuple[list[str], list[str]]:
    recorder, seen = Recorder(), _Seen()
    with recorder.recording(), seen:
        everything(dist.get_rank())
    return [one.name for one in recorder.operations], seen.names


def test_nothing_is_missed_that_a_dispatch_mode_sees() -> None:
    for ours, theirs in run_on_ranks(cross_checked, ranks=2).values:
        assert ours == theirs
        assert {"send", "recv_", "allreduce_", "barrier", "monitored_barrier_", "gather_"} <= set(ours)


def test_functional_point_to_point_operations_are_recorded_and_waited_for() -> None:
    def body(rank: int) -> None:
        group = dist.group.WORLD.group_name
        ops = sys.modules["torch.ops"]._c10d_functional  # by name: cloudpickle would take torch.ops along
        value = torch.full((2,), 5.0)
        if rank == 0:
            ops.wait_tensor(ops.isend(value, 1, 0, group))
        else:
            value = torch.zeros(2)
            assert ops.wait_tensor(ops.irecv(value, 0, 0, group)).tolist() == [5.0, 5.0]

    first, second = of_ranks(body)
    assert [one.kind for one in (*first.operations, *second.operations)] == ["send", "receive"]
    assert [moment.kind for moment in second.moments] == ["issue", "wait"]


def test_what_a_rank_waits_for_can_be_read_from_another_thread() -> None:
    def body() -> tuple[list[str], int]:
        shown: list[str] = []

        def look() -> None:
            while not any(one.blocks for one in pending()):
                time.sleep(0.001)
            shown.extend(map(str, pending()))
            dist.send(torch.ones(1), 1, tag=1)  # only now the other rank may go on

        with Recorder().recording():
            if dist.get_rank() == 0:
                work = dist.isend(torch.ones(3), 1)
                looker = threading.Thread(target=look)
                looker.start()
                dist.recv(torch.ones(2), 1)
                work.wait()
                looker.join()
            else:
                dist.recv(torch.ones(1), 0, tag=1)
                dist.recv(torch.ones(3), 0)
                dist.send(torch.ones(2), 0)
            return shown, len(pending())

    shown, left = run_on_ranks(body, ranks=2).values[0]
    receive, send = shown
    assert tells(receive, "waits for receive", "float32[2]", "from rank 1", "operation 1")
    assert tells(send, "not waited for send", "float32[3]", "to rank 1", "operation 0")
    assert left == 0


def test_nothing_is_left_in_torch_when_recording_has_ended() -> None:
    def body() -> tuple[bool, list[Operation], bool]:
        wait = dist.Work.wait
        recorder = Recorder()
        with recorder.recording():
            changed = dist.Work.wait is not wait
        dist.all_reduce(torch.ones(1))
        return changed, list(recorder.operations), dist.Work.wait is wait

    for changed, seen, restored in run_on_ranks(body, ranks=2).values:
        assert (changed, seen, restored) == (True, [], True)


def test_other_threads_run_while_an_operator_blocks() -> None:
    """Gloo's worker wants Python's lock while it holds the queue that a caller of the next operator waits for."""

    def body(rank: int) -> None:
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["ran meanwhile"], timedelta(seconds=20))
            dist.monitored_barrier()
            return
        begun = threading.Event()

        def run_meanwhile() -> None:
            begun.set()
            while "monitored_barrier_" not in str(pending()):
                time.sleep(0.001)
            store.set("ran meanwhile", "yes")

        thread = threading.Thread(target=run_meanwhile)
        thread.start()
        begun.wait()
        dist.monitored_barrier()
        thread.join()

    first, _ = of_ranks(body)
    assert [one.name for one in first.operations] == ["monitored_barrier_"]
