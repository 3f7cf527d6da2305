"""Where a pipeline rank has no gradients, clip_grad_norm_ reduces tensors of two dtypes, and processes die.

What: the norms of the pipeline's ranks are put together by an all-reduce. A rank without gradients, as with a frozen
  part of the model, has a norm of float32 there, whatever the model's dtype is; the others have that of their
  gradients. With bfloat16 or float64, gloo then ends a process. The zero is on the CPU, too, wherever the model is.
Where: torchtitan 0.3.0, torchtitan/distributed/utils.py, clip_grad_norm_ (lines 652 to 674).
Why: torch's get_total_norm returns torch.tensor(0.0) for no gradients, and it is reduced as it is.
Requirement: TRN-5 and LIF-6, where the norm is asked for.
Schedules: all.
Known: no thread about this is known.
Possible fix: make the zero of the dtype and on the device of the parameters, or agree on float32 on the mesh's device.
"""

import os
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.distributed.utils import clip_grad_norm_


def worker(rank, folder, dtype, frozen):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    part = nn.Linear(3, 3, bias=False, dtype=dtype)
    if not (frozen and rank == 0):
        part.weight.grad = torch.ones(3, 3, dtype=dtype)
    try:
        result = f"norm {float(clip_grad_norm_(part.parameters(), 1.0, pp_mesh=mesh)):.3g}"
    except RuntimeError as error:
        result = f"{type(error).__name__}"
    Path(folder, f"rank{rank}").write_text(result)
    dist.barrier()


def told(dtype, frozen):
    print(
        f"{dtype}, {'rank 0 frozen' if frozen else 'nothing frozen'}; right is {3 if frozen else 18**0.5:.3g}:"
    )
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            mp.get_context("spawn").Process(target=worker, args=(r, folder, dtype, frozen)) for r in (0, 1)
        ]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(40)
        found = [Path(folder, f"rank{rank}") for rank in (0, 1)]
        right = all(path.exists() and path.read_text().startswith("norm") for path in found)
        if right:
            print(f"  both ranks: {found[0].read_text()}")
        else:
            died = any(one.exitcode is not None and one.exitcode < 0 for one in ranks)
            print(f"  no norm on both ranks; a process died by a signal: {died}")
        for one in ranks:
            one.kill()


if __name__ == "__main__":
    told(torch.bfloat16, frozen=False)
    told(torch.float32, frozen=True)
    told(torch.bfloat16, frozen=True)
    told(torch.float64, frozen=True)
