"""After an evaluation by gpipe, a training step of one microbatch is not reduced over the replicas.

What: with `forward_only`, gpipe leaves gradient synchronisation switched off. A training step of several microbatches
  switches it on again by the way; one of a single microbatch, as of a batch with one sample, does not: every replica
  keeps its own gradient. There is no error, and the replicas train apart.
Where: Hetu-Galvatron 2.4.0 (and main of June 2026), galvatron/core/runtime/pipeline/pipeline.py, gpipe_forward (line
  739), enter_no_sync_context; its counterpart is in gpipe_backward (line 870). By reading,
  no_pipeline_forward_backward returns before its counterpart, too (line 355).
Why: FSDP's no_sync is entered before the forwards, and left after the backwards, of which an evaluation has none.
Requirement: none (near DPC-1 (after an evaluation)).
Schedules: gpipe; control: pipedream_flush, which leaves it.
Known: no thread about this is known.
Possible fix: do not enter it with `forward_only`.

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
from megatron.training.global_vars import set_args
from torch import nn

torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda: None

WORLD, CHUNKS, SAMPLES, WIDTH = 4, 2, 4, 4
ARGUMENTS = SimpleNamespace(
    pp_deg=2,
    sequence_parallel=False,
    shape_order="BSH",
    async_grad_reduce=True,
    default_dp_type="ddp",
    reduce_in_fp32=True,
    initialize_on_meta=0,
    load=None,
    distributed_checkpoint=False,
)


class Block(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH)


def loss_func(labels, outputs):
    loss = nn.functional.mse_loss(outputs[0], labels[0])
    return loss, loss.detach()


def gradient(rank, model, data, schedule, *, evaluates):
    """The first element of the stage's gradient after a training step with one sample per replica."""
    stage, replica = divmod(rank, 2)
    pipeline = [CommGroup([0, 2]), CommGroup([1, 3])][replica]
    replicas = [CommGroup([0, 1]), CommGroup([2, 3])][stage]
    blocks = [Block(), Block()]
    for block, original in zip(blocks, model, strict=True):
        block.load_state_dict(original.state_dict())
    new_group, dist.new_group = dist.new_group, lambda ranks: pipeline.group  # gloo would mix up the groups
    pipe = PipelineParallel(
        PipeSequential(*(nn.Sequential(block) for block in blocks)),
        [0, 1],
        [[[-1, WIDTH]], None],
        layer_dp_sizes=[2, 2],
        chunks=CHUNKS,
        process_group=pipeline.ranks,
    )
    dist.new_group = new_group
    pipe.local_rank = torch.device("cpu")
    pipe.chunk_warning = False  # that there are fewer samples than chunks
    pipe.wrap_pipeline_modules_data_parallel(
        [0, 0],
        [replicas] * 2,
        ["gpt_dec"] * 2,
        torch.float32,
        wrap_block_name=[Block],
        tp_groups=[replicas] * 2,
    )
    run = pipe.gpipe_forward_backward if schedule == "gpipe" else pipe.pipedream_flush_forward_backward
    if evaluates:
        with torch.no_grad():
            run([[one[replica]] for one in data], loss_func, forward_only=True)
    run([[one[replica, :1]] for one in data], loss_func)
    return float(next(p.grad for p in pipe.parameters() if p.grad is not None)[0])


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    set_args(ARGUMENTS)
    torch.manual_seed(0)
    x, y = data = torch.randn(2, 2, SAMPLES, WIDTH)
    model = nn.Sequential(Block(), Block())
    nn.functional.mse_loss(model(x[:, 0]), y[:, 0]).backward()
    stage, replica = divmod(rank, 2)
    expected = float(model[stage].weight.grad[0, 0])
    for schedule in ("gpipe", "pipedream_flush"):
        for evaluates in (False, True):
            found = gradient(rank, model, data, schedule, evaluates=evaluates)
            head = f"{schedule}, {'evaluation, then ' if evaluates else ''}training"
            said = f"stage {stage}, replica {replica}: gradient {found:.3f}, expected {expected:.3f}"
            with Path(folder, f"{rank}.txt").open("a") as file:
                file.write(f"{head}|  {said}\n")
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        told = [Path(folder, f"{rank}.txt").read_text().splitlines() for rank in range(WORLD)]
    for lines in zip(*told, strict=True):
        print(lines[0].partition("|")[0])
        print("\n".join(line.partition("|")[2] for line in lines))


if __name__ == "__main__":
    main()
