"""DistributedDataParallel cannot be constructed when TORCH_DISTRIBUTED_DEBUG is DETAIL: the process ends by SIGSEGV.

What: with gloo on CPU, the constructor of DistributedDataParallel ends the process by SIGSEGV, whatever the module
  and however many ranks there are. With TORCH_DISTRIBUTED_DEBUG=OFF or INFO, or without the wrapper, all is well.
Where: torch 2.13.0 (CPU build), torch/nn/parallel/distributed.py, _ddp_init_helper, the construction of the Reducer.
Why: not looked into.
Requirement: DPC-1, in the variant `validated` (ERR-10 and ERR-13 show it and are blocked: their control, the same case
  with a communication hook that does not raise, ends in the same way).
Schedules: any, and none.
Known: -
Possible fix: -
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

WORLD = 2


def worker(rank, folder):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    said = Path(folder, f"{rank}.txt")
    total = torch.ones(1)
    dist.all_reduce(total)
    said.write_text("an all-reduce works")
    DistributedDataParallel(nn.Linear(2, 2))
    said.write_text("an all-reduce works, and the constructor returned")
    os._exit(0)


def main():
    crashed = {}
    for level in ("OFF", "INFO", "DETAIL"):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                subprocess.Popen(
                    [sys.executable, __file__, str(rank), folder],
                    env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": level},
                    stderr=subprocess.DEVNULL,
                )
                for rank in range(WORLD)
            ]
            codes = [process.wait(timeout=120) for process in processes]
            path = Path(folder, "0.txt")
            said = path.read_text() if path.exists() else "no result"
            crashed[level] = codes[0] == -11
            print(
                f"{level}: {said}; exit code {codes[0]}{' (SIGSEGV)' if crashed[level] else ''}", flush=True
            )
    sys.exit(0 if crashed["DETAIL"] or not any(crashed.values()) else 2)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(int(sys.argv[1]), sys.argv[2])
    main()
