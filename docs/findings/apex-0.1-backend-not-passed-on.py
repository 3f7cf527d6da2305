"""Groups are NCCL's where no backend is named, and not those of the default group's backend.

What: after `init_process_group("gloo")`, initialize_model_parallel asks for groups of NCCL. Where torch has no NCCL
  that is an error on every rank; where it has, tensors of the CPU cannot be sent in them.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/parallel_state.py, new_process_group (line 140).
Why: it makes "nccl" of None for a setting of NCCL's, and hands that on to torch, whose new_group takes None for the
  backend of the default group. Other names than "nccl" and "ucc" are refused before (an assertion).
Why it is one: the docstring of initialize_model_parallel says of default_backend and of p2p_backend "If `None`, the
  backend specified in `torch.distributed.init_process_group` will be used".
Requirement: none (the adapter replaces the function; near COM-2).
Schedules: all.
Known: no thread about this is known.
Possible fix: pass None on to torch.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from apex.transformer import parallel_state

WORLD = 2


def passed_on(ranks, backend):
    return dist.new_group(ranks, backend=backend)


def worker(rank, folder, mended):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    if mended:
        parallel_state.new_process_group = passed_on
    try:
        parallel_state.initialize_model_parallel(pipeline_model_parallel_size_=WORLD)
        backend = dist.get_backend(parallel_state.get_pipeline_model_parallel_group())
        found = f"groups of {backend}"
    except Exception as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    Path(folder, f"{rank}").write_text(found)
    dist.barrier()
    os._exit(0)


def main():
    for name, mended in (("as it is", False), ("with None passed on to torch", True)):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, mended), nprocs=WORLD)
            for rank in range(WORLD):
                print(f"{name}: rank {rank}: {Path(folder, f'{rank}').read_text()}")


if __name__ == "__main__":
    main()
