"""A batch that is no multiple of `micro_bsz` silently loses samples.

What: of 5 samples with micro_bsz=2 the last is neither computed nor reported: output, loss and gradients are those of
  the first 4. Of 7 samples with micro_bsz=4 there is one microbatch, of all 7; of 11 there are two of 5, and the last
  sample is lost. Evaluation in internlm/eval asserts a multiple; the schedulers, which are handed the batch, do not.
Where: InternEvo 0.5.3 (develop of January 2025; 0.5.2 is the same here), internlm/core/scheduler/
  pipeline_scheduler_1f1b.py (0.5.2: pipeline_scheduler.py), PipelineScheduler.load_batch; no_pipeline_scheduler.py.
Why: the number of microbatches and their size are rounded down, one after the other.
Requirement: FWD-2.
Schedules: all, where the data is not packed.
Known: no thread about this is known.
Possible fix: assert the multiple in load_batch.

The engine runs on CUDA devices; here it runs on CPU with gloo, with two calls of its accelerator patched (below).
"""

import logging
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from importlib.util import find_spec
from types import ModuleType

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

P, WIDTH = 2, 3
CASES = ((4, 2), (5, 2), (7, 4), (11, 4))  # samples, micro_bsz


class Stage(nn.Module):
    """One of the stages; the engine gives it the input by name, or what the stage before returned."""

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden=None, x=None):
        return torch.tanh(self.linear(x if hidden is None else hidden))


def load_engine():
    """Import the engine; also without packages that its data sets and models want, and without CUDA."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    unused = ("datasets", "datasets.distributed", "PIL", "transformers")
    missing = [name for name in unused if find_spec(name.partition(".")[0]) is None]
    for name in missing:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__getattr__ = lambda _: object
    import internlm.core.scheduler  # noqa: F401
    from internlm.accelerator import get_accelerator

    for name in missing:
        del sys.modules[name]
    get_accelerator().is_available = lambda: False
    get_accelerator().synchronize = lambda: None


def configure(rank):
    from internlm.core.context import Config, ParallelMode, global_context

    parallel = {"pipeline": {"size": P}, "tensor": {"size": 1, "mode": "mtp"}, "expert": {"no_tp": False}}
    parallel["sequence_parallel"] = False
    config = {"parallel": parallel, "data": {}, "model": {"dtype": torch.float32}}
    global_context.load_config(Config(config))
    for mode in (ParallelMode.GLOBAL, ParallelMode.PIPELINE):
        global_context._register_dist(rank, P, dist.group.WORLD, None, list(range(P)), mode)


def worker(rank, folder):
    load_engine()
    from internlm.core.context import global_context
    from internlm.core.engine import Engine
    from internlm.core.scheduler import PipelineScheduler
    from internlm.solver.optimizer.base_optimizer import BaseOptimizer

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=P,
        timeout=timedelta(seconds=20),
    )
    configure(rank)
    for samples, micro_bsz in CASES:
        stage = Stage(rank)
        optimizer = BaseOptimizer(torch.optim.SGD(stage.parameters(), lr=0.1))
        optimizer.skip_grad_reduce = False
        engine = Engine(model=stage, optimizer=optimizer, criterion=nn.functional.mse_loss)
        scheduler = PipelineScheduler(2, scheduler_hooks=[])
        scheduler.pre_processing(engine)
        global_context.config.data.micro_bsz = micro_bsz
        torch.manual_seed(99)
        x, y = torch.randn(2, samples, WIDTH)
        output, _, loss = scheduler.forward_backward_step(engine, iter([({"x": x}, y)]))
        if rank < P - 1:
            continue
        stages = [Stage(s) for s in range(P)]
        parts = [
            nn.functional.mse_loss(stages[1](stages[0](x=one)), y[k : k + 1])
            for k, one in enumerate(x.split(1))
        ]
        sizes = scheduler.bsz_stride, scheduler.num_microbatches
        print(
            f"{samples} samples, micro_bsz={micro_bsz}: {sizes[1]} microbatches of {sizes[0]}, {len(output)} outputs"
        )
        for count in sorted({len(output), samples}):
            print(f"  mean loss of the first {count} samples: {torch.stack(parts[:count]).mean():.4f}")
        print(f"  loss that is returned: {loss.item():.4f}")
    dist.barrier()


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=P)


if __name__ == "__main__":
    main()
