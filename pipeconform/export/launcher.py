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

from pipeconform.export.program import DIFFERENT, FOUND, SINGLE_PROCESS, STUCK, WORLD, rank_main

GRACE = 10.0  # seconds for the other ranks, once one has ended badly


def launch(limit: float) -> int:
    """Start the ranks, wait for all, and say what became of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(1 if SINGLE_PROCESS else WORLD):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(WORLD),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TMPDIR": folder,
            }
            command = [sys.executable, os.path.abspath(__file__), "--limit", str(limit)]
            ranks.append(subprocess.Popen(command, env=environment))  # noqa: S603 - this file
        codes = wait_for(ranks)
    for rank, code in enumerate(codes):
        print(f"rank {rank} {ended(code)}")
    seen = verdict(codes)
    print(f"REPRODUCED: {seen}" if seen else "NOT REPRODUCED")
    print(f"what was found: {FOUND}")
    return int(bool(seen))


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
    words = {0: "returned", 1: "raised an error", DIFFERENT: "returned, and saw wrong values", STUCK: "hung"}
    return words.get(code, f"left with exit code {code}")


def verdict(codes: list[int | None]) -> str:
    """What the ranks' ends say together; empty if nothing is wrong."""
    if DIFFERENT in codes:
        return "failed, values are wrong"
    if any(code is not None and (code < 0 or code not in (0, 1, STUCK)) for code in codes):
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
