"""clip_grad_norm counts every replica, so gradients are clipped too early and too much.

What: the norm by which clip_grad_norm clips is taken over all ranks of the world. With `default_dp_type` "ddp", the
  default, each of the replicas has the whole gradient, so that the norm of two replicas is too large by the square root
  of two, and of 64 by eight. There is no error; how much is clipped depends on the number of replicas, and on whether
  they are sharded. The training scripts of llama_hf, T5 and swin clip in this way.
Where: Hetu-Galvatron 2.4.0, galvatron/core/runtime/utils.py, clip_grad_norm (line 130); in main of June 2026,
  galvatron/core/runtime/optimizer/utils.py.
Why: `clip_grad_norm_fp32(parameters, grads_for_norm, max_norm, norm_type)` is called without a group, and sums the
  squares over the world. The ranks hold different gradients only under ZeRO-2 and ZeRO-3. By reading, what ranks of a
  tensor-parallel group hold alike, such as layer norms, and tied embeddings on two stages, are counted twice, too.
Requirement: none (near TRN-17, TRN-21).
Schedules: all.
Known: no thread about this is known.
Possible fix: divide each module's squares by the number of ranks that hold the same gradient, or sum within the group
  of ranks that do not.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which a few calls are patched (below). The two
kernels of apex that compute a norm and multiply are written in torch.
"""

import os
import sys
import tempfile
import types
import warnings
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")
if find_spec("apex") is None:  # two of its kernels are written in torch below
    sys.modules.update(
        {name: MagicMock() for name in ("apex", "apex.optimizers", "apex.multi_tensor_apply", "amp_C")}
    )

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from galvatron.core.runtime import clip_grad_norm
from galvatron.core.runtime.comm_groups import CommGroup
from galvatron.core.runtime.pipeline import PipelineParallel, PipeSequential
from megatron.core.optimizer import clip_grads
from megatron.training.global_vars import set_args
from torch import nn

torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda: None


class TorchOnCpu(types.ModuleType):
    """``torch`` for the module that clips."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def tensor(self, data, dtype, device):
        return torch.tensor(data, dtype=dtype)


clip_grads.torch = TorchOnCpu("torch")
clip_grads.multi_tensor_applier = lambda kernel, overflow, lists, option: kernel(lists, option)
clip_grads.amp_C = SimpleNamespace(
    multi_tensor_l2norm=lambda lists, option: (torch.cat(lists[0]).norm().reshape(1), None),
    multi_tensor_scale=lambda lists, factor: [one.mul_(factor) for one in lists[0]],
)

WORLD, SAMPLES, WIDTH, MAX_NORM = 2, 4, 4, 1.0
ARGUMENTS = SimpleNamespace(
    sequence_parallel=False,
    shape_order="BSH",
    async_grad_reduce=True,
    reduce_in_fp32=True,
    initialize_on_meta=0,
    load=None,
    distributed_checkpoint=False,
)
CASES = ((2, "ddp"), (1, "zero2"), (1, "ddp"))  # stages, how replicas are synchronised


class Block(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)


def loss_func(labels, outputs):
    loss = 10 * nn.functional.mse_loss(outputs[0], labels[0])
    return loss, loss.detach()


def clipped(rank, model, data, case):
    """The norm that the engine finds, and the first element of this rank's clipped gradient."""
    num_stages, kind = case
    set_args(ARGUMENTS)
    ARGUMENTS.pp_deg, ARGUMENTS.default_dp_type = num_stages, kind
    alone, both = [CommGroup([i]) for i in range(WORLD)][rank], CommGroup(range(WORLD))
    pipeline, replicas = (both, alone) if num_stages == 2 else (alone, both)
    blocks = [Block(), Block()]
    for block, original in zip(blocks, model, strict=True):
        block.load_state_dict(original.state_dict())
    new_group, dist.new_group = dist.new_group, lambda ranks: pipeline.group  # gloo would mix up the groups
    pipe = PipelineParallel(
        PipeSequential(*(nn.Sequential(block) for block in blocks)),
        [0, num_stages - 1],
        [[[-1, WIDTH]], None],
        layer_dp_sizes=[replicas.size] * 2,
        process_group=pipeline.ranks,
    )
    dist.new_group = new_group
    pipe.local_rank = torch.device("cpu")
    pipe.wrap_pipeline_modules_data_parallel(
        [0, 0], [replicas] * 2, ["gpt_dec"] * 2, torch.float32, wrap_block_name=[Block], tp_groups=[alone] * 2
    )
    run = pipe.no_pipeline_forward_backward if num_stages == 1 else pipe.gpipe_forward_backward
    run([[one.chunk(replicas.size)[rank % replicas.size]] for one in data], loss_func)
    torch.Tensor.type = lambda self: "torch.cuda.FloatTensor"  # asked for by clip_grad_norm_fp32
    norm = clip_grad_norm(pipe, MAX_NORM)
    del torch.Tensor.type
    return norm, float(next(pipe.parameters()).grad[0])


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    x, y = data = torch.randn(2, SAMPLES, WIDTH)
    model = nn.Sequential(Block(), Block())
    loss_func([y], [model(x)])[0].backward()
    right = float(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
    lines = []
    for case in CASES:
        found, first = clipped(rank, model, data, case)
        name = "2 stages" if case[0] == 2 else f"2 replicas, {case[1]}"
        expected = float(model[0].weight.grad[0, 0])
        lines.append(f"{name}\n  norm {found:.4f}, expected {right:.4f}; ")
        lines.append(f"a clipped gradient {first:.4f}, expected {expected:.4f}\n")
    if rank == 0:
        Path(folder, "told.txt").write_text("".join(lines))
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        print(Path(folder, "told.txt").read_text(), end="")


if __name__ == "__main__":
    main()
