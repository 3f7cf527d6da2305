"""Stages that build_model wraps in DDP, as it does by default: gradients are not the mean over the replicas.

What: with two stages and two replicas each replica's first stage has gradients of its own after a step: the last
  microbatch's is not averaged, silently. Replicas then take different steps, and drift apart. Every stage but the last
  is affected. With `no_sync` as custom_sync_context_handler nothing is averaged at all.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/pipeline_parallel/schedules/common.py, build_model (line 141: wrap_with_ddp is true by default),
  and the schedules with a pipeline, which do not know of the wrapper. The one without does: it uses `no_sync`.
Why: torch's wrapper reduces gradients in the first backward after a forward. Of the forwards of a warm-up only one
  counts, and the backwards of the cool-down have no forward before them. `no_sync` works by the forward, too, and the
  schedules have every forward inside of it.
Why it is one: the README has build_model with wrap_with_ddp in front of the loop, and in it nothing that reduces. The
  repository's tests give all replicas the same data.
Requirement: DPC-1.
Schedules: forward_backward_pipelining_without_interleaving (run here); the interleaved one warms up, too.
Known: https://github.com/NVIDIA/apex/pull/1475 says of the handler that it does not go with DistributedDataParallel; no
  thread about the default is known.
Possible fix: reduce once, at the end of a step; or leave the wrapper out where there is a pipeline.

The engine is made for CUDA; here its calls about CUDA mean the CPU, and its groups are made with gloo, for which a
function is replaced (E106).
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
from torch import nn
from torch.nn.parallel import distributed

REPLICAS = 2
DATA = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])  # of each replica


class OnCpu(distributed.DistributedDataParallel):
    """torch's wrapper, which the engine tells of a CUDA device."""

    def __init__(self, module, device_ids, output_device, process_group):
        super().__init__(module, process_group=process_group)


distributed.DistributedDataParallel = OnCpu
torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
nn.Module.cuda = lambda module, device: module

from apex.transformer import parallel_state
from apex.transformer.pipeline_parallel import build_model, get_forward_backward_func, utils

parallel_state.new_process_group = lambda ranks, backend: dist.new_group(ranks)


class Stage(nn.Module):
    """Multiplies by a weight of 1."""

    def __init__(self, pre_process, post_process):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        return self.weight * (x if self.received is None else self.received)


def forward_step(microbatch, model):
    return model(*microbatch), lambda output: (output.sum(), {})


def gradient(p, wrap_with_ddp, handled):
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size_=p)
    utils.setup_microbatch_calculator(1, None, DATA.numel(), 1, REPLICAS)
    sys.stdout = sys.stderr  # build_model prints
    (model,) = build_model(Stage, wrap_with_ddp)
    get_forward_backward_func(None, p)(
        forward_step,
        [DATA[parallel_state.get_data_parallel_rank()].view(4, 1, 1)],
        [model],
        forward_only=False,
        tensor_shape=(1, 1, 1),
        custom_sync_context_handler=model.no_sync if handled else None,
    )
    (weight,) = model.parameters()
    if not wrap_with_ddp:
        dist.all_reduce(weight.grad, group=parallel_state.get_data_parallel_group())
        weight.grad /= REPLICAS
    return weight.grad.item()


def worker(rank, folder, world, *how):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    found = gradient(*how)
    stage, replica = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(),
    )
    Path(folder, f"{stage}-{replica}").write_text(f"{found:.2f}")
    dist.barrier()
    os._exit(0)


def main():
    print(f"every gradient is due to be the mean of the data: {DATA.mean().item():.2f}")
    rows = [
        ("1 stage, DDP", 1, True, False),
        ("2 stages, averaged by hand", 2, False, False),
        ("2 stages, DDP", 2, True, False),
        ("2 stages, DDP and no_sync", 2, True, True),
    ]
    for name, p, *how in rows:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, p * REPLICAS, p, *how), nprocs=p * REPLICAS)
            for s in range(p):
                both = " and ".join(Path(folder, f"{s}-{r}").read_text() for r in range(REPLICAS))
                print(f"{name}: stage {s} has {both} on its replicas")


if __name__ == "__main__":
    main()
