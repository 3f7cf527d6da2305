"""A stage that hands on two tensors ends in an AttributeError, though all that sends and receives takes lists.

What: stages may return a list or tuple of tensors, by the annotations and docstrings of the schedulers and by the code
  that exchanges shapes, receives, sends and goes backwards. A step ends in "AttributeError: 'tuple' object has no
  attribute 'dtype'" on the rank that sends first, and the others wait for it. Without assertions (python -O) the same
  step is right.
Where: InternEvo 0.5.3 (develop of January 2025; 0.5.2 is the same here), internlm/core/scheduler/
  pipeline_scheduler_1f1b.py (0.5.2: pipeline_scheduler.py) and pipeline_scheduler_zb.py: `assert output_obj.dtype ==
  self.dtype` before a send.
Why: the assertion takes it for granted that there is one tensor.
Requirement: none: only one tensor is claimed (it would be FWD-4 and FWD-10).
Schedules: 1F1B (run here), the interleaved one and ZBH1, which have the same assertion; ZBV compares shapes otherwise.
Known: no thread about this is known.
Possible fix: assert it of every tensor.

The engine runs on CUDA devices; here it runs on CPU with gloo, with two calls of its accelerator patched (below).
"""

import logging
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

P, M, WIDTH = 2, 4, 3


class Stage(nn.Module):
    """The first stage returns a main and a side activation, and the last one takes both."""

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.main, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.is_first = index == 0

    def forward(self, *received, x=None):
        main, side = received or (x, x)
        main, side = torch.tanh(self.main(main)), torch.tanh(self.side(side))
        return (main, side) if self.is_first else main + side


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
    config = {"parallel": parallel, "data": {"micro_bsz": 1}, "model": {"dtype": torch.float32}}
    global_context.load_config(Config(config))
    for mode in (ParallelMode.GLOBAL, ParallelMode.PIPELINE):
        global_context._register_dist(rank, P, dist.group.WORLD, None, list(range(P)), mode)


def worker(rank, folder):
    load_engine()
    from internlm.core.engine import Engine
    from internlm.core.scheduler import PipelineScheduler
    from internlm.solver.optimizer.base_optimizer import BaseOptimizer

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=P,
        timeout=timedelta(seconds=3),
    )
    configure(rank)
    stage = Stage(rank)
    optimizer = BaseOptimizer(torch.optim.SGD(stage.parameters(), lr=0.1))
    optimizer.skip_grad_reduce = False
    engine = Engine(model=stage, optimizer=optimizer, criterion=nn.functional.mse_loss)
    scheduler = PipelineScheduler(M, scheduler_hooks=[])
    scheduler.pre_processing(engine)
    torch.manual_seed(99)
    x, y = torch.randn(2, M, WIDTH)
    try:
        scheduler.forward_backward_step(engine, iter([({"x": x}, y)]))
    except Exception as error:
        waited = isinstance(error, RuntimeError) and "gloo" in str(error)
        said = "waits in vain" if waited else f"{type(error).__name__}: {error}"
    else:
        stages = [Stage(s) for s in range(P)]
        nn.functional.mse_loss(stages[1](*stages[0](x=x)), y).backward()
        pairs = [(one.side.weight.grad.norm().item()) for one in (stage, stages[rank])]
        said = "gradient's norm {:.4f}, expected {:.4f}".format(*pairs)
    Path(folder, f"{rank}.txt").write_text(said)
    while not all(Path(folder, f"{one}.txt").exists() for one in range(P)):
        time.sleep(0.1)  # stay connected: who ends cannot be waited for
    os._exit(0)


def main():
    for words, level in (("with assertions", ""), ("without assertions", "1")):
        os.environ["PYTHONOPTIMIZE"] = level
        print(words)
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder,), nprocs=P)
            for rank in range(P):
                print(f"  rank {rank}: {Path(folder, f'{rank}.txt').read_text()}")


if __name__ == "__main__":
    main()
