"""Without a pipeline, tied embeddings get half of their gradient, and the two copies get different ones.

What: with `tied_wte_attr_names`, input and output embedding are two copies of one parameter, whose gradient is the sum
  of both uses. With two stages or more, both copies get it. With `pp_deg` 1 the first gets half of it, and the second a
  quarter of one use and three quarters of the other. There is no error. After one step the copies are different, and
  they stay so; the result depends on the pipeline degree.
Where: Hetu-Galvatron 2.4.0, galvatron/core/runtime/pipeline/grad_reduce.py,
  _allreduce_word_embedding_grads_no_pipeline (lines 105-111). In main of June 2026 both get the same half.
Why: the mean of the two gradients is taken, where the pipeline takes the sum; and the second mean is taken after the
  first has been written into one of them.
Requirement: none (near TRN-8).
Schedules: none (pp_deg 1); control: gpipe, pipedream_flush.
Known: no thread about this is known.
Possible fix: `total = wte.grad + lmhead.grad`, copied to both.

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
from galvatron.core.runtime.parallel import Module_with_relocation
from galvatron.core.runtime.pipeline import PipelineParallel, PipeSequential
from megatron.training.global_vars import set_args
from torch import nn

torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda: None

M, SAMPLES, CLASSES, WIDTH = 2, 4, 5, 4
ARGUMENTS = SimpleNamespace(
    sequence_parallel=False,
    shape_order="BSH",
    async_grad_reduce=True,
    default_dp_type="ddp",
    reduce_in_fp32=True,
    initialize_on_meta=0,
    load=None,
    distributed_checkpoint=False,
)


class Table(nn.Embedding):
    def __init__(self):
        super().__init__(CLASSES, WIDTH)
        torch.manual_seed(1)
        self.reset_parameters()


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = Table()

    def forward(self, x):
        return self.wte(x)


class Head(nn.Module):
    """Logits; its weight is the embedding's."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(Table().weight.detach())

    def forward(self, hidden):
        return hidden @ self.weight.T


def loss_func(labels, outputs):
    loss = nn.functional.cross_entropy(outputs[0], labels[0])
    return loss, loss.detach()


def worker(rank, folder, schedule, world):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    ARGUMENTS.pp_deg = world
    set_args(ARGUMENTS)
    alone, everyone = [CommGroup([i]) for i in range(world)][rank], CommGroup(range(world))
    layers = [Module_with_relocation(layer, None, None, None, None) for layer in (Embedding(), Head())]
    pipe = PipelineParallel(
        PipeSequential(*layers),
        [0, world - 1],
        [[[-1, WIDTH]], None],
        chunks=M,
        process_group=range(world),
        embedding_group=everyone,
        tied_wte_attr_names=["wte", ""],
    )
    pipe.local_rank = torch.device("cpu")
    pipe.sync_embedding = lambda: None  # the copies are equal; their mean cannot be had from gloo
    pipe.wrap_pipeline_modules_data_parallel(
        [0, 0],
        [alone] * 2,
        ["embed", "cls"],
        torch.float32,
        wrap_block_name=[],
        wrap_other_block_name=[Table, Head],
        tp_groups=[alone] * 2,
    )
    torch.manual_seed(0)
    x, y = torch.randint(CLASSES, (2, SAMPLES))
    optimizer = torch.optim.SGD(pipe.parameters(), lr=1.0)
    run = {
        "no pipeline": pipe.no_pipeline_forward_backward,
        "gpipe": pipe.gpipe_forward_backward,
        "pipedream_flush": pipe.pipedream_flush_forward_backward,
    }[schedule]
    run([[x], [y]], loss_func)
    copies = [p for p in pipe.parameters() if p.numel()]
    gradients = [p.grad[-WIDTH:].clone() for p in copies]  # of the last class
    optimizer.step()

    table = Table().weight.detach().requires_grad_()
    nn.functional.cross_entropy(nn.functional.embedding(x, table) @ table.T, y).backward()
    names = ("embedding", "head") if world == 1 else (("embedding", "head")[rank],)
    lines = [
        f"  {name}: gradient {_told(gradient)}, expected {_told(table.grad[-1])}; "
        f"weight after a step {_told(copy[-WIDTH:])}\n"
        for name, gradient, copy in zip(names, gradients, copies, strict=True)
    ]
    Path(folder, f"{rank}.txt").write_text("".join(lines))
    dist.barrier()
    os._exit(0)


def _told(vector):
    return " ".join(f"{float(one):.2f}" for one in vector[:2])


def main():
    for schedule, world in (("gpipe", 2), ("pipedream_flush", 2), ("no pipeline", 1)):
        print(schedule)
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, schedule, world), nprocs=world)
            for rank in range(world):
                print(Path(folder, f"{rank}.txt").read_text(), end="")


if __name__ == "__main__":
    main()
