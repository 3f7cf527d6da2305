"""With error_if_nonfinite, clip_grad_norm_ raises on one rank of a pipeline, and the others hang.

What: clip_grad_norm_ is to raise where the norm of all gradients is not finite. It looks at this rank's gradients,
  before they are put together over the pipeline: where one rank has an infinite gradient it raises there, and the
  others wait for it. Where no rank has one, but the norm of all is too large for the dtype, nothing is raised.
Where: torchtitan 0.3.0, torchtitan/distributed/utils.py, clip_grad_norm_ (line 652), and _clip_grad_norm_with_ep.
Why: error_if_nonfinite is given to torch's get_total_norm, which knows only the parameters of this rank.
Requirement: none (the adapter, as the engine's trainer, does not set it; near TRN-21).
Schedules: all.
Known: no thread about this is known.
Possible fix: raise after the reduction over pp_mesh, when every rank has the same norm.
"""

import os
import tempfile
import time
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


def worker(rank, folder, gradients):
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
    parameter = nn.Parameter(torch.zeros(()))
    parameter.grad = torch.tensor(gradients[rank])
    try:
        norm = clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True, pp_mesh=mesh)
        result = f"norm {float(norm):.4g}"
    except RuntimeError as error:
        result = f"RuntimeError: {str(error)[:60]}..."
    Path(folder, f"rank{rank}").write_text(result)
    while True:  # a rank that raised stays connected
        time.sleep(0.1)


def told(*gradients):
    whole = [nn.Parameter(torch.zeros(())) for _ in gradients]
    for parameter, value in zip(whole, gradients, strict=True):
        parameter.grad = torch.tensor(value)
    try:
        norm = nn.utils.clip_grad_norm_(whole, 1.0, error_if_nonfinite=True)
        alone = f"norm {float(norm):.4g}"
    except RuntimeError as error:
        alone = f"RuntimeError: {str(error)[:60]}..."
    print(f"gradients {gradients}:\n  torch, the model in one piece: {alone}")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [mp.get_context("spawn").Process(target=worker, args=(r, folder, gradients)) for r in (0, 1)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(15)
        for rank, one in enumerate(ranks):
            path = Path(folder, f"rank{rank}")
            result = path.read_text() if path.exists() else "no result after 30 seconds"
            print(f"  rank {rank}: {result}")
            one.kill()


if __name__ == "__main__":
    told(3.0, 4.0)
    told(3.0, float("inf"))
    told(1.5e19, 1.5e19)
