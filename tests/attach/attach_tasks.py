"""What attached ranks run in these tests; every task returns bytes.

Torch is imported where it is used: a server that preloads this module alone starts in a tenth of a second.
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import time

from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.wire import HEADER


def who(context: RankContext, payload: bytes) -> bytes:
    return f"{context.rank} of {context.world_size} on {context.device}: ".encode() + payload


def pid(context: RankContext, payload: bytes) -> bytes:
    return str(os.getpid()).encode()


def parent(context: RankContext, payload: bytes) -> bytes:
    return str(os.getppid()).encode()


def variable(context: RankContext, payload: bytes) -> bytes:
    return os.environ.get(payload.decode(), "(unset)").encode()


def total(context: RankContext, payload: bytes) -> bytes:
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(context.rank + 1)])
    dist.all_reduce(x)
    return str(x.item()).encode()


def subgroups(context: RankContext, payload: bytes) -> bytes:
    """Sum over the ranks of the same parity, in groups made for this task."""
    import torch
    import torch.distributed as dist

    groups = [dist.new_group(list(range(parity, context.world_size, 2))) for parity in (0, 1)]
    x = torch.tensor([float(context.rank)])
    dist.all_reduce(x, group=groups[context.rank % 2])
    for group in groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return str(x.item()).encode()


def large(context: RankContext, payload: bytes) -> bytes:
    return payload[::-1]


def send_a_frame(context: RankContext, payload: bytes) -> bytes:
    """A frame that is no answer, from rank 0: its kind and its body."""
    if context.rank == 0:
        kind, body = payload.split(b" ", 1)
        mine = next(o for o in gc.get_objects() if isinstance(o, socket.socket) and o.fileno() >= 0)
        mine.sendall(HEADER.pack(1, time.monotonic(), int(kind), len(body)) + body)
    return b"fine"


def no_bytes(context: RankContext, payload: bytes) -> object:
    return {"not": "bytes"}


def raise_error(context: RankContext, payload: bytes) -> bytes:
    import torch
    import torch.distributed as dist

    if context.rank == 0:
        raise ValueError("rank 0 does not like this")
    dist.recv(torch.empty(1), src=0)
    return b""


def kill_itself(context: RankContext, payload: bytes) -> bytes:
    import torch
    import torch.distributed as dist

    if context.rank == 0:
        print("last words")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(torch.empty(1), src=0)
    return b""


def circle(context: RankContext, payload: bytes) -> bytes:
    import torch
    import torch.distributed as dist

    print("before the circle")
    dist.recv(torch.empty(1), src=1 - context.rank)
    return b""


def spin(context: RankContext, payload: bytes) -> bytes:
    """Rank 0 computes for longer than ranks may idle, the others wait for it."""
    import torch.distributed as dist

    end = time.monotonic() + 1.5
    while context.rank == 0 and time.monotonic() < end:
        pass
    dist.barrier()
    return b"done"


def compute(context: RankContext, payload: bytes) -> bytes:
    """Rank 0 computes for half a second."""
    end = time.monotonic() + 0.5
    while context.rank == 0 and time.monotonic() < end:
        pass
    return b"done"


def child_and_sleep(context: RankContext, payload: bytes) -> bytes:
    """Leave word of who runs, have a process of its own, and wait for what never comes."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(f"{payload.decode()}/{context.rank}", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    if context.rank == 0:
        while True:  # it computes: no evidence of a hang ends it
            pass
    if "torch" in sys.modules:  # a rank with a process group
        import torch.distributed as dist

        dist.barrier()
    while True:
        time.sleep(3600)
