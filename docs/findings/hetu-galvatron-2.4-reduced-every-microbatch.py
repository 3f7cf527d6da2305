"""With no_async_grad_reduce and fp32 or fp16, gradients of some microbatches are not reduced over the replicas.

What: `no_async_grad_reduce` is documented to synchronise gradients after every backward. With a pipeline and
  `mixed_precision` fp32 or fp16 it is done after some of them only, on every rank with more than one microbatch in
  flight: gradients of the others stay as one replica has them, and with ZeRO-2 and ZeRO-3 shards are wrong as well.
  There is no error; with DDP the replicas train apart.
Where: Hetu-Galvatron 2.4.0 (and main of June 2026), galvatron/core/runtime/hybrid_parallel_model.py,
  construct_hybrid_parallel_model_api (line 170): FSDP's hooks are replaced `if args.mixed_precision == "bf16"` only.
Why: torch's FSDP registers its hook in the first forward, and removes it in the next backward. Forwards that were run
  between the two have none. The engine's own functions register one in each forward, and are used for bf16 alone.
Requirement: none (near DPC-1, DPC-2).
Schedules: gpipe (all ranks), pipedream_flush (all ranks but the last stage's).
Known: no thread about this is known.
Possible fix: use the replacements with every precision.

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
from galvatron.core.runtime.pipeline.grad_reduce import (
    _finalize_params_bf16,
    _register_post_backward_hook_bf16,
)
from megatron.training.global_vars import set_args
from torch import nn
from torch.distributed.fsdp import _runtime_utils

torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda: None

WORLD, M, SAMPLES, WIDTH = 4, 4, 4, 4
ARGUMENTS = SimpleNamespace(
    pp_deg=2,
    sequence_parallel=False,
    shape_order="BSH",
    reduce_in_fp32=True,
    initialize_on_meta=0,
    load=None,
    distributed_checkpoint=False,
)
HOOKS = {  # as the engine chooses them
    torch.float32: (_runtime_utils._register_post_backward_hook, _runtime_utils._finalize_params),
    torch.bfloat16: (_register_post_backward_hook_bf16, _finalize_params_bf16),
}
CASES = (  # schedule, replicas, precision, whether once per step
    ("gpipe", "ddp", torch.float32, True),
    ("gpipe", "ddp", torch.bfloat16, False),
    ("gpipe", "ddp", torch.float32, False),
    ("gpipe", "zero3", torch.float32, False),
    ("pipedream_flush", "ddp", torch.float32, False),
)


class Block(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(super().forward(x))


def loss_func(labels, outputs):
    loss = nn.functional.mse_loss(outputs[0].float(), labels[0])
    return loss, loss.detach()


def gradient(rank, model, data, case):
    """The gradient of the stage that this rank has, flat; with shards, its own part."""
    schedule, kind, precision, once = case
    set_args(ARGUMENTS)
    ARGUMENTS.default_dp_type, ARGUMENTS.async_grad_reduce = kind, once
    _runtime_utils._register_post_backward_hook, _runtime_utils._finalize_params = HOOKS[precision]
    stage, replica = divmod(rank, 2)
    pipeline = [CommGroup([0, 2]), CommGroup([1, 3])][replica]
    replicas = [CommGroup([0, 1]), CommGroup([2, 3])][stage]
    blocks = [Block(), Block()]
    for block, original in zip(blocks, model, strict=True):
        block.load_state_dict(original.state_dict())
    layers = [nn.Sequential(block) for block in blocks]
    new_group, dist.new_group = dist.new_group, lambda ranks: pipeline.group  # gloo would mix up the groups
    pipe = PipelineParallel(
        PipeSequential(*layers),
        [0, 1],
        [[[-1, WIDTH]], None],
        [[precision], None],
        layer_dp_sizes=[2, 2],
        chunks=M,
        process_group=pipeline.ranks,
    )
    dist.new_group = new_group
    pipe.local_rank = torch.device("cpu")
    pipe.wrap_pipeline_modules_data_parallel(
        [0, 0],
        [replicas] * 2,
        ["gpt_dec"] * 2,
        precision,
        wrap_block_name=[Block],
        tp_groups=[replicas] * 2,
    )
    run = pipe.gpipe_forward_backward if schedule == "gpipe" else pipe.pipedream_flush_forward_backward
    run([[one[replica]] for one in data], loss_func)
    return next(p.grad for p in pipe.parameters() if p.grad is not None)


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    x, y = data = torch.randn(2, 2, SAMPLES, WIDTH)
    model = nn.Sequential(Block(), Block())
    nn.functional.mse_loss(model(x), y).backward()
    stage, replica = divmod(rank, 2)
    right = torch.cat([p.grad.flatten() for p in model[stage].parameters()])
    for case in CASES:
        schedule, kind, precision, once = case
        found = gradient(rank, model, data, case)
        expected = right if len(found) == len(right) else right.chunk(2)[replica]
        error = float((found - expected).norm() / expected.norm())
        said = "right" if error < 0.05 else f"wrong by {error:.0%}"
        head = f"{schedule}, {kind}, {precision}, reduced {'once per step' if once else 'after every microbatch'}"
        first = f"first gradient {found[0]:.3f}, expected {expected[0]:.3f}"
        with Path(folder, f"{rank}.txt").open("a") as file:
            file.write(f"{head}|  stage {stage}, replica {replica}: {first}; all {said}\n")
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        told = [Path(folder, f"{rank}.txt").read_text().splitlines() for rank in range(WORLD)]
    for lines in zip(*told, strict=True):
        print(lines[0].partition("|")[0].replace("torch.", ""))
        print("\n".join(line.partition("|")[2] for line in lines))


if __name__ == "__main__":
    main()
