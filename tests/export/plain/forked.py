"""Runs programs in processes forked from one that has imported torch: a program's own processes need no imports.

Reads a line of JSON for each program (its path, and code that changes torch first), and answers with a line of JSON:
the exit code and the output. Started by `Programs` of conftest.py.
"""

import json
import os
import runpy
import select
import signal
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.multiprocessing as mp
import torch.nn.parallel

PATIENCE = 400


def one(path, change):
    mine, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.dup2(its, 1)
        os.dup2(its, 2)
        os._exit(program(path, change))
    os.close(its)
    until, output = time.monotonic() + PATIENCE, b""
    while time.monotonic() < until:
        if select.select([mine], [], [], 1)[0]:
            data = os.read(mine, 1 << 16)
            if not data:
                break
            output += data
    else:
        os.killpg(child, signal.SIGKILL)
    os.close(mine)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode(errors="replace")


def program(path, change):
    real = mp.get_context
    mp.get_context = lambda _: real("fork")
    with open(path) as file:
        if "TORCH_DISTRIBUTED_DEBUG" in file.read():
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
            dist.set_debug_level_from_env()
    try:
        exec(change, {"torch": torch})
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        sys.stdout.flush()
        return end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return 99


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        json.dump(one(*json.loads(line)), answers)
        answers.write("\n")
        answers.flush()
