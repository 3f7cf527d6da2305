"""The beginning and the end of an exported program: starting its ranks, and saying what became of them.

A part of `program`, which says what it may import.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

from pipeconform.export.process import DIFFERENT, FOUND, NUMBER, SAW, STUCK, UNFIT, WORLDS, WRONG
from pipeconform.export.program import rank_main

GRACE = 10.0  # seconds for the other ranks, once one has ended badly


def launch(limit: float) -> int:
    """Start the ranks of every world, one world after the other, and say what became of them."""
    codes: list[int | None] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(WORLDS):
            codes = wait_for(start(size, number, folder, limit))
            if any(codes):
                break
    for rank, code in enumerate(codes):
        print(f"rank {rank} {ended(code)}")
    seen = verdict(codes)
    if not seen and UNFIT in codes:
        print("NOT RUN: a rank could not run the case")
        return 2
    print(f"REPRODUCED: {seen}" if seen else "NOT REPRODUCED")
    print(f"what was found: {FOUND}")
    return int(bool(seen))


def start(size: int, number: int, folder: str, limit: float) -> list[subprocess.Popen[bytes]]:
    """The rank processes of one world."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    own = {**os.environ, **meeting, NUMBER: str(number), "TMPDIR": folder}
    command = [sys.executable, os.path.abspath(__file__), "--limit", str(limit)]
    return [
        subprocess.Popen(command, env={**own, "RANK": str(rank), "LOCAL_RANK": str(rank)})  # noqa: S603 - this file
        for rank in range(size)
    ]


def wait_for(ranks: list[subprocess.Popen[bytes]]) -> list[int | None]:
    """The exit codes; None for a rank that was killed because another had ended badly before."""
    deadline = float("inf")
    while any(one.poll() is None for one in ranks) and time.monotonic() < deadline:
        if deadline == float("inf") and any(one.poll() for one in ranks):
            deadline = time.monotonic() + GRACE
        time.sleep(0.05)
    codes: list[int | None] = [one.poll() for one in ranks]
    for one in ranks:
        if one.poll() is None:
            one.kill()
            one.wait()
    return codes


def ended(code: int | None) -> str:
    """How a rank ended, in words."""
    if code is None:
        return "still waited when another had ended, and was killed"
    if code < 0:
        return f"died by signal {-code}"
    words = {
        0: "returned",
        1: "raised an error",
        DIFFERENT: f"returned, and saw {SAW}",
        UNFIT: "could not run the case",
        STUCK: "hung",
    }
    return words.get(code, f"left with exit code {code}")


def verdict(codes: list[int | None]) -> str:
    """What the ranks' ends say together; empty if nothing is wrong."""
    if DIFFERENT in codes:
        return f"failed, {WRONG}"
    if any(code is not None and (code < 0 or code not in (0, 1, UNFIT, STUCK)) for code in codes):
        return "crashed, a rank died"
    if (
        STUCK in codes
    ):  # an error beside it came of the lost connection: one that came first ends the others soon
        return "hung, no rank went on"
    return "error, a rank raised" if 1 in codes else ""


def main() -> None:
    """Be a rank where torchrun, or `launch`, says so; otherwise start the ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().partition("\n")[0])
    parser.add_argument("--limit", type=float, default=60.0, help="seconds until a rank is taken to hang")
    given = parser.parse_args()
    code = rank_main(given.limit) if "RANK" in os.environ else launch(given.limit)
    sys.stdout.flush()
    os._exit(code)  # a rank's groups may hold threads that wait for others
