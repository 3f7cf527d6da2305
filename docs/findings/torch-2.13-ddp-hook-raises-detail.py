"""A communication hook that raises kills the process when TORCH_DISTRIBUTED_DEBUG is DETAIL.

What: a module in DistributedDataParallel has a communication hook, which raises. With default settings the backward
  raises the hook's error. With TORCH_DISTRIBUTED_DEBUG=DETAIL the process ends by SIGSEGV, and the error is lost.
Where: torch 2.13.0, DistributedDataParallel, with the reducer's checks of DETAIL; a pipeline has no part in it but that
  its backward runs the wrapper's.
Why: not looked into.
Requirement: ERR-10, ERR-13 with the variant `validated`.
Schedules: all, also a pipeline of one rank; two replicas.
Known: -
Possible fix: -
"""

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

WORLD = 2


def worker(rank, folder, with_pipeline):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.nn.parallel import DistributedDataParallel

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    alone = [dist.new_group([r]) for r in range(WORLD)][rank]

    def hook(state, bucket):
        raise RuntimeError("the hook is broken")

    wrapped = DistributedDataParallel(nn.Linear(2, 2))
    wrapped.register_comm_hook(None, hook)
    x, target = torch.ones(1, 2), torch.zeros(1, 2)
    try:
        if with_pipeline:
            stage = PipelineStage(wrapped, 0, 1, torch.device("cpu"), group=alone)
            ScheduleGPipe(stage, 1, loss_fn=nn.functional.mse_loss).step(x, target=target)
        else:
            nn.functional.mse_loss(wrapped(x), target).backward()
        said = "no error"
    except Exception as error:
        told = "the hook is broken" in f"{error} {error.__cause__}"
        said = f"{type(error).__name__}, the hook's error {'told' if told else 'lost'}"
    Path(folder, f"{rank}.txt").write_text(said)
    os._exit(0)


def main():
    for level in ("OFF", "DETAIL"):
        for with_pipeline in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                processes = [
                    subprocess.Popen(
                        [sys.executable, __file__, str(rank), folder, str(int(with_pipeline))],
                        env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": level},
                        stderr=subprocess.DEVNULL,
                    )
                    for rank in range(WORLD)
                ]
                codes = [process.wait(timeout=120) for process in processes]
                path = Path(folder, "0.txt")
                if not path.exists() and codes[0] >= 0:
                    sys.exit(f"inconclusive: {level}: rank 0 gave no result and was not killed")
                died = f"no result; exit code {codes[0]} (-11 is SIGSEGV)"
                where = "in a stage of a pipeline" if with_pipeline else "alone"
                print(f"{level}, {where}: {path.read_text() if path.exists() else died}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(int(sys.argv[1]), sys.argv[2], bool(int(sys.argv[3])))
    main()
