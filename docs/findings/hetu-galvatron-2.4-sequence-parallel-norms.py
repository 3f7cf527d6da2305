"""Gradients of layer norms are not summed over a sequence-parallel group on the last stage of 1F1B, and with shards.

What: with `sequence-parallel`, every rank of a tensor-parallel group has a part of the sequence, and the gradient of a
  layer norm is the sum over the group. The engine adds it up when it reduces gradients. It does not do so
  (a) under pipedream_flush, on the last stage, ever;
  (b) with `no_async_grad_reduce` and ZeRO-2 or ZeRO-3, in any microbatch but the last (here without a pipeline).
  There is no error. The norms of a group have different gradients, and different weights after a step.
Where: Hetu-Galvatron 2.4.0 (and main of June 2026), galvatron/core/runtime/pipeline/pipeline.py,
  pipedream_flush_forward_backward (line 636) and no_pipeline_forward_backward (line 333), set_last_batch; and
  sp_grad_reduce.py, _post_backward_hook_sp (line 110).
Why: the sum is made where `last_batch` is set. (a) Under 1F1B it is set in the loop of the cooldown, which the last
  stage has none of. (b) With shards every microbatch is reduced by itself, and only the last has `last_batch` set.
Requirement: none (near TRN-1).
Schedules: (a) pipedream_flush; (b) all.
Known: no thread about this is known.
Possible fix: (a) set it before the last backward, wherever that is; (b) set it in every microbatch where gradients are
  sharded and reduced after each.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which a few calls are patched (below).
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")
if find_spec("apex") is None:  # its kernels are imported, and not used here
    sys.modules.update(
        {name: MagicMock() for name in ("apex", "apex.optimizers", "apex.multi_tensor_apply", "amp_C")}
    )

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from galvatron.core.runtime.comm_groups import CommGroup
from galvatron.core.runtime.pipeline import PipelineParallel, PipeSequential
from galvatron.core.runtime.utils import get_layernorm_offset
from megatron.core import parallel_state
from megatron.training.global_vars import set_args
from torch import nn

torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda: None
parallel_state.get_global_memory_buffer = lambda: SimpleNamespace(
    get_tensor=lambda shape, dtype, name: torch.empty(shape, dtype=dtype)
)

WORLD, M, SAMPLES, LENGTH, WIDTH = 4, 4, 4, 6, 4
ARGUMENTS = SimpleNamespace(
    sequence_parallel=True,
    shape_order="SBH",
    reduce_in_fp32=True,
    initialize_on_meta=0,
    load=None,
    distributed_checkpoint=False,
)
CASES = (  # pipeline ranks, schedule, how replicas are synchronised, whether once per step
    (2, "gpipe", "ddp", True),
    (2, "pipedream_flush", "ddp", True),
    (1, "none", "zero2", True),
    (1, "none", "zero2", False),
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.LayerNorm(x))


class Layer(nn.Module):
    """A block; the first layer turns samples first into length first, and takes this rank's part of the length."""

    def __init__(self, part):
        super().__init__()
        self.block, self.part = Block(), part

    def forward(self, x):
        return self.block(x if self.part is None else x.transpose(0, 1).chunk(2)[self.part])


def gradients(rank, data, case):
    """The first element of the gradient of each layer norm's weight that this rank has, by layer."""
    num_stages, schedule, kind, once = case
    set_args(ARGUMENTS)
    ARGUMENTS.pp_deg, ARGUMENTS.default_dp_type, ARGUMENTS.async_grad_reduce = num_stages, kind, once
    outer, part = divmod(rank, 2)  # of the pipeline, or the replica; of the tensor-parallel group
    tensor = [CommGroup([0, 1]), CommGroup([2, 3])][outer]
    across, alone = [CommGroup([0, 2]), CommGroup([1, 3])][part], [CommGroup([i]) for i in range(WORLD)][rank]
    pipeline, replicas = (across, alone) if num_stages == 2 else (alone, across)
    layers = [Layer(part), Layer(None)]
    offsets, sizes = get_layernorm_offset(layers, ["LayerNorm"])
    new_group, dist.new_group = dist.new_group, lambda ranks: pipeline.group  # gloo would mix up the groups
    pipe = PipelineParallel(
        PipeSequential(*layers),
        [0, num_stages - 1],
        [[[LENGTH, -1, WIDTH]], None],
        layer_dp_sizes=[replicas.size] * 2,
        layer_tp_sizes=[2, 2],
        chunks=M,
        process_group=pipeline.ranks,
    )
    dist.new_group = new_group
    pipe.local_rank = torch.device("cpu")
    pipe.wrap_pipeline_modules_data_parallel(
        [0, 0],
        [replicas] * 2,
        ["gpt_dec"] * 2,
        torch.float32,
        wrap_block_name=[Block],
        tp_groups=[tensor] * 2,
        all_block_name=[Block],
    )
    pipe.gen_sp_layernorm_info(["gpt_dec"] * 2, [tensor] * 2, offsets, sizes, [Block])

    def loss_func(labels, outputs):
        loss = ((outputs[0] - labels[0].transpose(0, 1).chunk(2)[part]) ** 2).sum()
        return loss, loss.detach()

    run = {
        "gpipe": pipe.gpipe_forward_backward,
        "pipedream_flush": pipe.pipedream_flush_forward_backward,
        "none": pipe.no_pipeline_forward_backward,
    }[schedule]
    run([[one.chunk(replicas.size)[outer % replicas.size]] for one in data], loss_func)
    if num_stages == 1 and outer == 1:
        return {}  # has the other shards
    first = outer if num_stages == 2 else 0
    return {
        first + k: float(p.grad[0]) for k, p in enumerate(p for p in pipe.parameters() if p.grad is not None)
    }


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    x, y = data = torch.randn(2, SAMPLES * 2, LENGTH, WIDTH)
    model = nn.Sequential(Block(), Block())
    ((model(x) - y) ** 2).sum().backward()
    for case in CASES:
        num_stages, schedule, kind, once = case
        found = gradients(rank, data, case)
        scale = M if num_stages == 2 else 2 * M  # loss / m, and the mean of two replicas
        lines = [
            f"  layer {layer}, rank {rank}: gradient {got:.2f}, expected "
            f"{float(model[layer].LayerNorm.weight.grad[0]) / scale:.2f}\n"
            for layer, got in found.items()
        ]
        name = f"{schedule}, {num_stages} stages" if num_stages > 1 else f"no pipeline, {kind}"
        head = f"{name}, gradients reduced {'once per step' if once else 'after every microbatch'}\n"
        with Path(folder, f"{rank}.txt").open("a") as file:
            file.write(head + "".join(lines) + "---\n")
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        told = [Path(folder, f"{rank}.txt").read_text().split("---\n")[:-1] for rank in range(WORLD)]
    for parts in zip(*told, strict=True):
        print(parts[0].partition("\n")[0])
        print("\n".join(sorted(line for part in parts for line in part.splitlines()[1:])))


if __name__ == "__main__":
    main()
