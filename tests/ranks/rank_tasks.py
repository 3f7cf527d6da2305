"""What the ranks of these tests run: one small task per way to succeed or to come to grief."""

import contextlib
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from plain_values import plain

from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.wire import HEADER, Kind, frame


@plain
def rank_of(context: RankContext, payload: bytes) -> object:
    return context.rank, context.world_size, context.device, payload


def empty(context: RankContext, payload: bytes) -> bytes:
    return b""


def echo(context: RankContext, payload: bytes) -> bytes:
    return payload


@plain
def pid(context: RankContext, payload: bytes) -> int:
    return os.getpid()


@plain
def total(context: RankContext, payload: bytes) -> float:
    """All-reduce the ranks' numbers: it needs every rank and the whole group."""
    import torch
    import torch.distributed as dist

    x = torch.tensor([float(context.rank + 1)])
    dist.all_reduce(x)
    return x.item()


@plain
def subgroups(context: RankContext, payload: bytes) -> float:
    """Sum over the ranks of the same parity, in groups made for this task."""
    import torch
    import torch.distributed as dist

    groups = [dist.new_group(list(range(parity, context.world_size, 2))) for parity in (0, 1)]
    x = torch.tensor([float(context.rank)])
    dist.all_reduce(x, group=groups[context.rank % 2])
    for group in groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return x.item()


@plain
def facts(context: RankContext, payload: bytes) -> dict[str, object]:
    import torch
    import torch.distributed as dist

    return {
        "threads": torch.get_num_threads(),
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "variant": os.environ.get("PIPECONFORM_TEST"),
    }


def _others_wait(context: RankContext) -> None:
    """Everybody but rank 0 waits for a message that never comes."""
    import torch
    import torch.distributed as dist

    if context.rank != 0:
        dist.recv(torch.empty(1), src=0)


def raise_what_was_collected(context: RankContext, payload: bytes) -> bytes:
    """All ranks together, as when torch.distributed.checkpoint cannot load."""
    from torch.distributed.checkpoint.api import CheckpointException

    missing = RuntimeError("Missing key in checkpoint state_dict: momentum.")
    raise CheckpointException("plan", {1: (missing, None), 3: (KeyError("another"), None)})


def raise_error(context: RankContext, payload: bytes) -> None:
    if context.rank == 0:
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("rank 0 does not like this") from error
    _others_wait(context)


def leave(context: RankContext, payload: bytes) -> None:
    sys.exit(0)


def raise_everywhere(context: RankContext, payload: bytes) -> None:
    raise RuntimeError(f"rank {context.rank}")


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_rudely(context: RankContext, payload: bytes) -> None:
    raise Rude


def kill_itself(context: RankContext, payload: bytes) -> None:
    if context.rank == 0:
        print("last words")
        os.kill(os.getpid(), signal.SIGKILL)
    _others_wait(context)


def abort_itself(context: RankContext, payload: bytes) -> None:
    """As a transport does whose peer closed the connection."""
    if context.rank == 0:
        print("terminate called")
        os.abort()
    _others_wait(context)


def end_as_out_of_memory(context: RankContext, payload: bytes) -> None:
    """Holds memory, and ends as by the kernel's killer."""
    if context.rank == 0:
        held = bytearray(64 << 20)
        os.kill(os.getpid(), signal.SIGKILL)
        del held
    _others_wait(context)


def exit_silently(context: RankContext, payload: bytes) -> None:
    if context.rank == 0:
        os._exit(0)
    time.sleep(3600)


def sleep_forever(context: RankContext, payload: bytes) -> None:
    time.sleep(3600)


def stop_itself(context: RankContext, payload: bytes) -> bytes:
    if context.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return b""


def spin_forever(context: RankContext, payload: bytes) -> None:
    while True:
        pass


def spin_briefly(context: RankContext, payload: bytes) -> bytes:
    """Rank 0 computes for a second, the others only wait for it."""
    import torch.distributed as dist

    end = time.monotonic() + 1.0
    while context.rank == 0 and time.monotonic() < end:
        pass
    dist.barrier()
    return b"done"


@plain
def child_spins(context: RankContext, payload: bytes) -> int:
    """A process of the rank's own computes for a second."""
    code = "import time; end = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    return subprocess.run([sys.executable, "-c", code], check=True).returncode


def leave_children(context: RankContext, payload: bytes) -> None:
    """Two processes of the rank's own, one in a session of its own, outlive the rank."""
    for new_session in (False, True):
        subprocess.Popen([sys.executable, "-c", payload.decode()], start_new_session=new_session)
    time.sleep(3600)


@plain
def print_much(context: RankContext, payload: bytes) -> int:
    line = "x" * 1023
    for _ in range(20 * 1024):
        print(line)
    return 20


def print_much_and_die(context: RankContext, payload: bytes) -> None:
    print_much(context, payload)
    print("the very end")
    os._exit(3)


def print_forever(context: RankContext, payload: bytes) -> None:
    block = b"y" * (1 << 20)
    while True:
        os.write(1, block)


def return_no_bytes(context: RankContext, payload: bytes) -> object:
    return (lambda: None) if context.rank == 0 else b""


def _own_connection() -> socket.socket:
    """The rank's end of the socket to the controller, as an adapter may find it."""
    return next(o for o in gc.get_objects() if isinstance(o, socket.socket) and o.fileno() >= 0)


class Payload:
    """Unpickled, it makes the folder that its argument names."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def send_a_pickle(context: RankContext, payload: bytes) -> bytes:
    """An answer of the kind that once was a pickle; both ranks go on as if nothing had happened."""
    number, folder = payload.split(b" ", 1)
    body = pickle.dumps(Payload(folder.decode()))
    _own_connection().sendall(HEADER.pack(int(number), time.monotonic(), 6, len(body)) + body)
    return body


def send_a_frame(context: RankContext, payload: bytes) -> bytes:
    """A frame that is no answer, from rank 0: its kind, the length that it says, and its body."""
    number, kind, length, body = payload.split(b" ", 3)
    if context.rank == 0:
        header = HEADER.pack(int(number), time.monotonic(), int(kind), int(length))
        _own_connection().sendall(header + body)
    return b"fine"


def answer_at(context: RankContext, payload: bytes) -> bytes:
    """Answers with a moment of its own choice."""
    _own_connection().sendall(HEADER.pack(1, float(payload), Kind.BYTES, 0))
    return b""


def return_much(context: RankContext, payload: bytes) -> bytes:
    return bytes([context.rank]) * (50 << 20)


def answer_twice(context: RankContext, payload: bytes) -> bytes:
    """Forge an answer of the task before this one, and one of the task after it."""
    number = int(payload)
    connection = _own_connection()
    for stale in (number - 1, number - 1):
        connection.sendall(frame(stale, kind=Kind.BYTES, length=5) + b"stale")
    return b"fresh"


def close_connection(context: RankContext, payload: bytes) -> None:
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    time.sleep(3600)


@plain
def die_after_answering(context: RankContext, payload: bytes) -> tuple[int, int]:
    killer = os.fork()
    if killer == 0:
        parent = os.getppid()
        time.sleep(0.1)
        os.kill(parent, signal.SIGKILL)
        os._exit(0)
    return os.getpid(), killer


@plain
def leave_a_child(context: RankContext, payload: bytes) -> int:
    """Its copies of the rank's sockets stay open when the rank is gone."""
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    return child


def kill_server(context: RankContext, payload: bytes) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def close_stdout(context: RankContext, payload: bytes) -> bytes:
    sys.stdout.close()
    with contextlib.suppress(OSError):
        os.close(1)
    return b"quiet"


@plain
def scheduling_policies(context, payload):
    """Of every thread of the process, after a collective."""
    import torch.distributed as dist

    dist.barrier()
    return sorted({os.sched_getscheduler(int(tid)) for tid in os.listdir("/proc/self/task")})


@plain
def blocked_signals(context, payload):
    """For each thread of the process the numbers of the signals that it keeps blocked.

    The C library blocks all signals for a moment where a thread begins or ends, so each is looked at several times.
    """
    found = {}
    for _ in range(5):
        for tid, blocked in _blocked_now():
            found.setdefault(tid, []).append(blocked)
        time.sleep(0.05)
    return [set.intersection(*seen) for seen in found.values() if len(seen) == 5]


def _blocked_now():
    for tid in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            status = Path(f"/proc/self/task/{tid}/status").read_text()
            mask = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
            yield tid, {number for number in range(1, 64) if mask >> (number - 1) & 1}


@plain
def speak(context, payload):
    """Say each line of the payload, alternately on both outputs, and its rank; the last line is left without an end."""
    *lines, last = payload.decode().split("\n")
    for index, line in enumerate(lines):
        print(f"{line} of {context.rank}", file=(sys.stdout, sys.stderr)[index % 2])
    sys.stdout.write(last)


def speak_and_hang(context: RankContext, payload: bytes) -> None:
    print(f"{payload.decode()} of {context.rank}")
    time.sleep(3600)
