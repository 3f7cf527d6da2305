"""Ways for real ranks to hang, and to look as if they did."""

import os
import signal
import time

import torch
import torch.distributed as dist

from pipeconform.ranks import examiner
from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.recording.recorder import Recorder


def recorded(task):
    """Run a task with its communication recorded; what it returns is written as text."""

    def run(context: RankContext, payload: bytes) -> bytes:
        with Recorder().recording():
            return str(task(context, payload)).encode()

    return run


def plain_circle(context: RankContext, payload: bytes) -> None:
    """Nothing is recorded: torch's own frames tell."""
    dist.recv(torch.zeros(2), src=(context.rank + 1) % context.world_size)


@recorded
def receive_circle(context: RankContext, payload: bytes) -> None:
    dist.barrier()
    with examiner.telling(lambda: f"as told by rank {context.rank}"):
        work = dist.irecv(torch.zeros(2, 3), src=(context.rank + 1) % context.world_size, tag=5)
        assert work is not None
        work.wait()


def recorded_late(context: RankContext, payload: bytes) -> None:
    """Idle for so long that it is asked before it records anything, as while a busy machine still connects it."""
    time.sleep(0.3)
    receive_circle(context, payload)


@recorded
def send_circle(context: RankContext, payload: bytes) -> None:
    dist.send(torch.zeros(3), dst=1 - context.rank)


@recorded
def barrier_and_receive(context: RankContext, payload: bytes) -> None:
    if context.rank == 0:
        dist.barrier()
    else:
        dist.recv(torch.zeros(1), src=0)


@recorded
def unmatched_receive(context: RankContext, payload: bytes) -> None:
    """Rank 0 receives one message more than rank 1 sends, then both meet."""
    for _ in range(3 - context.rank):
        if context.rank == 0:
            dist.recv(torch.zeros(1), src=1)
        else:
            dist.send(torch.zeros(1), dst=0)
    dist.barrier()


def left_early(context: RankContext, payload: bytes) -> bytes:
    if context.rank == 0:
        dist.recv(torch.zeros(1), src=1)
    return b""


@recorded
def died_first(context: RankContext, payload: bytes) -> None:
    """Rank 2 waits for rank 1, which waits for rank 0, which is killed when the others wait."""
    if context.rank == 0:
        for peer in (1, 2):
            dist.recv(torch.zeros(1), src=peer)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.send(torch.zeros(1), dst=0)
    dist.recv(torch.zeros(1), src=context.rank - 1)


@recorded
def late_sender(context: RankContext, payload: bytes) -> float:
    """Rank 0 is idle for a second before it sends; nobody uses the processor meanwhile."""
    value = torch.full((1,), 7.0)
    if context.rank == 0:
        time.sleep(1.0)
        dist.send(value, dst=1)
    else:
        dist.recv(value.zero_(), src=0)
    return value.item()


@recorded
def big_messages(context: RankContext, payload: bytes) -> float:
    """Both send tens of megabytes to each other at once: for a while both only wait for bytes in flight."""
    mine, other = torch.full((4 << 20,), float(context.rank)), torch.zeros(4 << 20)
    for _ in range(3):
        works = [dist.isend(mine, dst=1 - context.rank), dist.irecv(other, src=1 - context.rank)]
        for work in works:
            assert work is not None
            work.wait()
    return other.mean().item()


def forgotten_send(context: RankContext, payload: bytes) -> None:
    """Rank 0 drops a large tensor while it is sent: gloo's loop spins, and rank 1 waits for the rest."""
    if context.rank == 0:
        dist.isend(torch.ones(16 << 20), dst=1)  # neither the work nor the tensor is kept
        dist.recv(torch.zeros(1), src=1)
    else:
        time.sleep(0.2)  # the tensor is gone by now
        dist.recv(torch.zeros(16 << 20), src=0)


@recorded
def stopped_and_continued(context: RankContext, payload: bytes) -> float:
    """Rank 0 is stopped for a second by a child; rank 1 waits for it."""
    value = torch.full((1,), 3.0)
    if context.rank == 0:
        child = os.fork()
        if child == 0:
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(1.0)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.waitpid(child, 0)
        dist.send(value, dst=1)
    else:
        dist.recv(value.zero_(), src=0)
    return value.item()


@recorded
def timed_wait(context: RankContext, payload: bytes) -> str:
    """Waits that end by themselves: the circle is none."""
    from datetime import timedelta

    work = dist.irecv(torch.zeros(1), src=1 - context.rank)
    assert work is not None
    try:
        work.wait(timedelta(seconds=1))
    except RuntimeError as error:
        return "timed out" if "imeout" in str(error) or "Timed out" in str(error) else str(error)
    return "received"


def half_a_collective(context: RankContext, payload: bytes) -> None:
    """One rank comes to a sum, the other waits for a message; nothing of ours records it."""
    dist.all_reduce(torch.ones(3))
    if context.rank == 0:
        dist.all_reduce(torch.ones(2, 3))
    else:
        dist.recv(torch.zeros(1), src=0)


def polled_collective(context: RankContext, payload: bytes) -> None:
    """One rank waits where no frame of torch tells so, as kernels of NCCL let it."""
    dist.all_reduce(torch.ones(3))
    if context.rank == 0:
        work = dist.all_reduce(torch.ones(2, 3), async_op=True)
        assert work is not None
        while not work.is_completed():
            time.sleep(0.2)
    else:
        dist.recv(torch.zeros(1), src=0)
