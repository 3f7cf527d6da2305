"""Each property of the test backend, switched on and off."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.xdist_group("device")


def full(value, num=4):
    return torch.full((num,), float(value), device=torch.device("testdev", torch.testdev.current_device()))


def of_this_call(function):
    """A group of its own, which has the properties that are switched on."""

    def run():
        group = dist.new_group()
        try:
            return function(group)
        finally:
            dist.distributed_c10d._abort_process_group(group)

    return run


@of_this_call
def collectives(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    reduced, gathered = full(rank + 1), [full(0) for _ in range(size)]
    dist.all_reduce(reduced, group=group)
    dist.all_gather(gathered, full(rank), group=group)
    scattered, mean = full(0), full(rank)
    dist.scatter(scattered, [full(10 + n) for n in range(size)] if rank == 0 else None, src=0, group=group)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
    told, part = full(rank), full(0, 1)
    dist.broadcast(told, src=1, group=group)
    dist.reduce_scatter(part, [full(n + rank, 1) for n in range(size)], group=group)
    swapped = [full(-1, 1) for _ in range(size)]
    dist.all_to_all(swapped, [full(10 * rank + n, 1) for n in range(size)], group=group)
    return [one[0].item() for one in (reduced, *gathered, scattered, mean, told, part, *swapped)]


@pytest.mark.parametrize("switches", [(), ("nccl",)], ids=["as gloo", "as NCCL"])
def test_collectives(on_ranks, switches):
    expected = [[3.0, 0.0, 1.0, 10.0 + n, 0.5, 1.0, 2.0 * n + 1.0, float(n), 10.0 + n] for n in range(2)]
    assert list(on_ranks(collectives, *nccl(switches), ranks=2).values) == expected


def nccl(names):
    own = (
        "late",
        "own-numbers",
        "device-only",
        "coalesces",
        "async-wait",
        "ordered",
        "rendezvous",
        "flushes",
        "lazy",
    )
    own = (*own, "late-arrival", "futures", "silent", "unsized")
    return tuple(one for name in names for one in (own if name == "nccl" else (name,)))


def test_device_only(on_ranks):
    @of_this_call
    def reduce(group):
        value = torch.ones(2)
        try:
            dist.all_reduce(value, group=group)
        except RuntimeError as error:
            return str(error)
        return value.tolist()

    assert on_ranks(reduce, ranks=2).values == ([2.0, 2.0],) * 2
    assert all(
        "No backend type associated with device type cpu" in said
        for said in on_ranks(reduce, "device-only", ranks=2).values
    )


def ring(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    came = full(-1)
    operations = [
        dist.P2POp(dist.isend, full(rank), group=group, group_peer=(rank + 1) % size),
        dist.P2POp(dist.irecv, came, group=group, group_peer=(rank - 1) % size),
    ]
    return came, dist.batch_isend_irecv(operations)


def test_coalesces(on_ranks):
    @of_this_call
    def exchange(group):
        came, works = ring(group)
        for work in works:
            work.wait()
        return len(works), came[0].item()

    assert on_ranks(exchange, ranks=2).values == ((2, 1.0), (2, 0.0))
    assert on_ranks(exchange, "coalesces", ranks=2).values == ((1, 1.0), (1, 0.0))


def test_works_inside_a_coalesced_batch_are_good_for_nothing(on_ranks):
    @of_this_call
    def inside(group):
        group._start_coalescing(torch.device("testdev"))
        value = full(1)
        work = group.allreduce([value])
        whole = group._end_coalescing(torch.device("testdev"))
        whole.wait()
        return value[0].item(), work.is_completed()

    assert on_ranks(inside, "coalesces", ranks=2).values == ((2.0, False),) * 2


@of_this_call
def wait_for_a_slow_peer(group):
    dist.all_reduce(full(0), group=group)
    if dist.get_rank() == 1:
        time.sleep(0.5)
    value = full(1)
    work = dist.all_reduce(value, group=group, async_op=True)
    begin = time.monotonic()
    work.wait()
    waited = time.monotonic() - begin
    return waited, work.is_completed(), value[0].item()


def test_async_wait(on_ranks):
    (first, _) = on_ranks(wait_for_a_slow_peer, ranks=2).values
    assert first[0] > 0.2
    assert first[1:] == (True, 2.0)
    (first, _) = on_ranks(wait_for_a_slow_peer, "async-wait", ranks=2).values
    assert first[1:] == (False, 2.0)


@of_this_call
def crossed(group):
    """Rank 0 sends and then receives; so does rank 1."""
    other, came = 1 - dist.get_rank(), full(-1)
    send = dist.isend(full(dist.get_rank()), group=group, group_dst=other)
    receive = dist.irecv(came, group=group, group_src=other)
    deadline = time.monotonic() + 1
    while not (send.is_completed() and receive.is_completed()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return send.is_completed(), receive.is_completed()


def test_sends_of_a_pair_that_face_each_other_never_end_if_they_are_ordered_and_wait_for_the_receive(
    on_ranks,
):
    assert on_ranks(crossed, ranks=2).values == ((True, True),) * 2
    assert on_ranks(crossed, "rendezvous", ranks=2).values == ((True, True),) * 2
    assert on_ranks(crossed, "ordered", ranks=2).values == ((True, True),) * 2
    # silent: the first rank to end its group would wake the other
    assert on_ranks(crossed, "ordered", "rendezvous", "silent", ranks=2).values == ((False, False),) * 2


def connect(group):
    """Let the two ranks have their communicator."""
    if dist.get_rank() == 0:
        dist.send(full(0), group=group, group_dst=1)
    else:
        dist.recv(full(0), group=group, group_src=0)
    torch.testdev.synchronize()


def test_rendezvous(on_ranks):
    @of_this_call
    def unmatched(group):
        connect(group)
        if dist.get_rank() == 0:
            send = dist.isend(full(1), group=group, group_dst=1)
            deadline = time.monotonic() + 1
            while not send.is_completed() and time.monotonic() < deadline:
                time.sleep(0.01)
            return send.is_completed()
        time.sleep(1.5)
        return None

    assert on_ranks(unmatched, "ordered", "silent", ranks=2)[0].value is True
    assert on_ranks(unmatched, "ordered", "silent", "rendezvous", ranks=2)[0].value is False


def test_flushes(on_ranks):
    def end():
        group = dist.new_group()
        dist.all_reduce(full(0), group=group)
        if dist.get_rank() == 0:
            dist.irecv(full(0), group=group, group_src=1)
            begin = time.monotonic()
            dist.destroy_process_group(group)
            return time.monotonic() - begin > 0.3
        time.sleep(0.8)
        dist.isend(full(1), group=group, group_dst=0).wait()
        return None

    assert on_ranks(end, "flushes", ranks=2)[0].value is True
    assert on_ranks(end, ranks=2)[0].value is False


def test_lazy(on_ranks, tmp_path):
    """The first call waits for the other rank; else it returns while the other waits for that."""

    def first_call(returned, patience):
        @of_this_call
        def call(group):
            until = time.monotonic() + patience
            while dist.get_rank() == 1 and not returned.exists() and time.monotonic() < until:
                time.sleep(0.01)
            seen = returned.exists()
            work = dist.all_reduce(full(1), group=group, async_op=True)
            returned.touch()
            work.wait()
            torch.testdev.synchronize()
            return seen

        return call

    assert on_ranks(first_call(tmp_path / "lazy", 0.8), "lazy", ranks=2).values[1] is False
    assert on_ranks(first_call(tmp_path / "at once", 60), ranks=2).values[1] is True


def test_late_arrival(on_ranks):
    @of_this_call
    def unwaited(group):
        dist.all_reduce(full(0), group=group)
        seen = set()
        for _ in range(20):  # who reads is late, too, now and then
            value = full(1)
            torch.testdev.synchronize()
            work = dist.all_reduce(value, group=group, async_op=True)
            early = (value + 0).cpu()[0].item()
            work.wait()
            seen.add((early, value[0].item()))
        return seen

    for seen in on_ranks(unwaited, "late-arrival", ranks=2).values:
        assert (1.0, 2.0) in seen
        assert seen <= {(1.0, 2.0), (2.0, 2.0)}


def test_futures(on_ranks):
    @of_this_call
    def future(group):
        dist.all_reduce(full(0), group=group)
        if dist.get_rank() == 1:
            time.sleep(0.5)
        found = dist.all_reduce(full(1), group=group, async_op=True).get_future()
        at_once = found.done()
        return at_once, found.then(lambda one: one.value()[0] * 2).wait()[0].item()

    assert on_ranks(future, "futures", ranks=2).values[0] == (True, 4.0)
    assert on_ranks(future, ranks=2).values[0] == (False, 4.0)


def test_unsized(on_ranks):
    @of_this_call
    def unequal(group):
        dist.barrier(group=group)
        if dist.get_rank() == 0:
            work = dist.isend(full(1, 2), group=group, group_dst=1)
        else:
            work = dist.irecv(full(0, 3), group=group, group_src=0)
        deadline = time.monotonic() + 0.7
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.01)
        return work.is_completed(), work.exception() is not None

    assert on_ranks(unequal, "rendezvous", ranks=2).values == ((True, True),) * 2
    assert on_ranks(unequal, "rendezvous", "unsized", ranks=2).values == ((False, False),) * 2


def test_silent(on_ranks):
    def alone():
        group = dist.new_group()
        connect(group)
        if dist.get_rank() == 1:
            dist.distributed_c10d._abort_process_group(group)  # its connections close
            time.sleep(1.5)
            return None
        time.sleep(0.3)
        work = dist.irecv(full(0), group=group, group_src=1)
        time.sleep(0.7)
        found = work.is_completed()
        dist.distributed_c10d._abort_process_group(group)
        return found

    assert on_ranks(alone, "ordered", "async-wait", ranks=2)[0].value is True
    assert on_ranks(alone, "ordered", "async-wait", "silent", ranks=2)[0].value is False


def test_abort_ends_what_is_pending(on_ranks):
    def aborted():
        group = dist.new_group()
        dist.all_reduce(full(0), group=group)
        work = dist.all_reduce(full(1), group=group, async_op=True) if dist.get_rank() == 0 else None
        time.sleep(0.2)
        dist.distributed_c10d._abort_process_group(group)
        if work is None:
            return None
        deadline = time.monotonic() + 5
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.01)
        return work.is_completed(), "aborted" in str(work.exception())

    assert on_ranks(aborted, "silent", ranks=2).values[0][0] is True


def test_operations_are_numbered(on_ranks):
    @of_this_call
    def numbered(group):
        before = group._get_backend(torch.device("testdev"))._get_sequence_number_for_group()
        dist.all_reduce(full(0), group=group)
        return group._get_backend(torch.device("testdev"))._get_sequence_number_for_group() - before

    assert on_ranks(numbered, ranks=2).values == (1, 1)
