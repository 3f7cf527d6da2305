"""Hangs on a device whose waits return at once: proved, with who waits for whom."""

from __future__ import annotations

import pytest

from pipeconform.ranks.verdict import Stuck

pytestmark = pytest.mark.xdist_group("device")

PATIENT = 30.0  # seconds of idleness: what is found sooner was proved
NCCL = ("device-only", "coalesces", "async-wait", "ordered", "rendezvous", "flushes", "silent", "futures")
"""Without lazy communicators, so that no call blocks, and without lateness, which takes time."""


@pytest.fixture
def hung(on_ranks):
    """What each rank of a hang waits for, and how long it took to find out."""

    def call(function, *switches, ranks=2, **options):
        options = {"idle_limit": PATIENT, **options}
        vector = on_ranks(function, *(switches or NCCL), ranks=ranks, record=True, **options)
        stuck = [one for one in vector if isinstance(one, Stuck)]
        assert len(stuck) == ranks, vector.describe()
        return [one.waits for one in stuck], max(one.seconds for one in stuck), vector.describe()

    return call


def place():
    import torch
    import torch.distributed as dist

    # not the device of the rank's number: another process of this host may have that one
    return dist.get_rank(), torch.device("testdev", torch.accelerator.current_device_index())


def both_receive_and_read():
    import torch
    import torch.distributed as dist

    rank, device = place()
    value = torch.ones(3, device=device)
    dist.recv(value, 1 - rank)
    return value.sum().item()


def both_receive_and_copy():
    import torch
    import torch.distributed as dist

    rank, device = place()
    value = torch.ones(3, device=device)
    dist.recv(value, 1 - rank)
    return (value + 1).cpu()


def both_receive_and_synchronize():
    import torch
    import torch.distributed as dist

    rank, device = place()
    dist.irecv(torch.ones(3, device=device), 1 - rank).wait()
    torch.accelerator.synchronize()


def both_receive_and_synchronize_by_the_module_of_the_device():
    import torch
    import torch.distributed as dist

    rank, device = place()
    dist.irecv(torch.ones(3, device=device), 1 - rank).wait()
    torch.testdev.synchronize()


@pytest.mark.parametrize(
    "function",
    [
        both_receive_and_read,
        both_receive_and_copy,
        both_receive_and_synchronize,
        both_receive_and_synchronize_by_the_module_of_the_device,
    ],
)
def test_two_ranks_that_wait_for_each_other(hung, function):
    waits, seconds, told = hung(function)

    assert waits == ["receive of float32[3] from rank 1", "receive of float32[3] from rank 0"]
    assert seconds < PATIENT / 2
    assert "every rank waits for one that waits too" in told


def test_threads_of_autograd_do_not_stand_against_a_proof(hung):
    def trained():
        import torch
        import torch.distributed as dist

        rank, device = place()
        value = torch.ones(3, device=device, requires_grad=True)
        (value * value).sum().backward()
        dist.recv(value.grad, 1 - rank)
        return value.grad.sum().item()

    waits, seconds, _ = hung(trained)
    assert waits == ["receive of float32[3] from rank 1", "receive of float32[3] from rank 0"]
    assert seconds < PATIENT / 2


def test_the_first_of_several_that_is_not_complete_is_named(hung):
    def a_batch_then_one_more():
        import torch
        import torch.distributed as dist

        rank, device = place()
        got, given = torch.zeros(3, device=device), torch.ones(3, device=device)
        other = dist.new_group([0, 1])
        batch = [dist.P2POp(dist.isend, given, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
        for work in dist.batch_isend_irecv(batch):  # this one is complete
            work.wait()
        # a batch that rank 1 has no part in, and on rank 1 a sum that rank 0 does not come to
        if rank == 0:
            batch = [
                dist.P2POp(dist.isend, given, 1),
                dist.P2POp(dist.irecv, torch.zeros(5, device=device), 1),
            ]
            for work in dist.batch_isend_irecv(batch):
                work.wait()
        else:
            dist.all_reduce(given, group=other)
        return (got + given).sum().item()

    waits, seconds, _ = hung(a_batch_then_one_more)
    assert waits == ["receive of float32[5] from rank 1", "allreduce of float32[3]"]
    assert seconds < PATIENT / 2


def test_a_wait_for_one_event_is_explained_and_not_proved(hung):
    def synchronised():
        import torch
        import torch.distributed as dist

        rank, device = place()
        dist.recv(torch.ones(3, device=device), 1 - rank)
        torch.accelerator.current_stream(device).synchronize()

    waits, _, told = hung(synchronised, idle_limit=1.0)
    assert waits == ["receive of float32[3] from rank 1", "receive of float32[3] from rank 0"]
    assert "no rank used CPU time" in told


def test_a_rank_that_sleeps_over_an_operation_may_still_send(on_ranks):
    def sleeps():
        import time

        import torch
        import torch.distributed as dist

        rank, device = place()
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        first, second = torch.zeros(1, device=device), torch.zeros(1, device=device)
        side = torch.Stream(device=device)
        if rank == 0:
            with side:
                dist.recv(first, 1, group=groups[0])  # orders another stream than the one of the send
            time.sleep(2.0)
            dist.send(second + 3, 1, group=groups[1])
            side.synchronize()
        else:
            dist.recv(second, 0, group=groups[1])
            dist.send(second + 4, 0, group=groups[0])
        found = second.item() + first.item()
        for group in groups:
            dist.destroy_process_group(group)
        return found

    vector = on_ranks(sleeps, *NCCL, ranks=2, record=True, idle_limit=PATIENT)
    assert vector.ok, vector.describe()
    assert vector.values == (7.0, 3.0)
