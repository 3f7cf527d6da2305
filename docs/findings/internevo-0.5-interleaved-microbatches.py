"""Interleaved stages, and a number of microbatches that is no multiple of the ranks: accepted, then ranks wait.

What: the constructor of InterleavedPipelineScheduler asks for a multiple of the number of ranks. But every step takes
  the number of microbatches from its batch, which is not checked: an increasing batch size (rampup_batch_size), a
  validation set with few samples, or another `valid_micro_num` give another number. A training step then ends in an
  IndexError or AttributeError on one rank; in an evaluation that rank returns as if all were well. The others wait.
Where: InternEvo 0.5.3 (develop of January 2025; 0.5.2 is the same here), internlm/core/scheduler/
  pipeline_scheduler_1f1b.py (0.5.2: pipeline_scheduler.py), PipelineScheduler.load_batch; _get_chunk_by_microbatch.
  Neither StaticBatchSampler (data/tokenized/batch_sampler.py, whose checks are about micro_bsz only), nor
  build_valid_loader_with_data_type (data/build_dataloader.py) takes care of the ranks.
Why: chunks alternate in rounds of as many microbatches as there are ranks; in an incomplete round a chunk's forwards
  are counted for another chunk.
Requirement: FWD-2, FWD-24.
Schedules: InterleavedPipelineScheduler; others take any number.
Known: no thread about this is known.
Possible fix: check in load_batch, which every rank calls with the whole batch, as the constructor does.

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

P, WIDTH, CHUNKS = 2, 3, 2


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
    config = {"parallel": parallel, "data": {"micro_bsz": 1}, "model": {"dtype": torch.float32}}
    global_context.load_config(Config(config))
    for mode in (ParallelMode.GLOBAL, ParallelMode.PIPELINE):
        global_context._register_dist(rank, P, dist.group.WORLD, None, list(range(P)), mode)


def worker(rank, folder, m, trains):
    load_engine()
    from internlm.core.engine import Engine
    from internlm.core.scheduler import InterleavedPipelineScheduler
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
    chunks = nn.ModuleList(Stage(s) for s in range(rank, CHUNKS * P, P))
    optimizer = BaseOptimizer(torch.optim.SGD(chunks.parameters(), lr=0.1))
    optimizer.skip_grad_reduce = False
    engine = Engine(model=chunks, optimizer=optimizer, criterion=nn.functional.mse_loss)
    scheduler = InterleavedPipelineScheduler(
        4, num_chunks=CHUNKS, scheduler_hooks=[], communication_overlap=True
    )
    scheduler.pre_processing(engine)
    torch.manual_seed(99)
    x, y = torch.randn(2, m, WIDTH)
    try:
        with torch.set_grad_enabled(trains):
            _, _, loss = scheduler.forward_backward_step(
                engine, iter([({"x": x}, y)]), forward_only=not trains
            )
    except Exception as error:
        waited = isinstance(error, RuntimeError) and "gloo" in str(error)
        said = "waits in vain" if waited else f"{type(error).__name__}: {error}"
    else:
        hidden = x
        for stage in map(Stage, range(CHUNKS * P)):
            hidden = stage(hidden)
        expected = nn.functional.mse_loss(hidden, y).item()
        said = "no error" if loss is None else f"loss {loss.item():.4f}, expected {expected:.4f}"
    Path(folder, f"{rank}.txt").write_text(said)
    while not all(Path(folder, f"{one}.txt").exists() for one in range(P)):
        time.sleep(0.1)  # stay connected: who ends cannot be waited for
    os._exit(0)


def main():
    for m, trains in ((4, True), (4, False), (3, True), (3, False), (1, False)):
        print(f"{'training' if trains else 'evaluation'}, {m} microbatch{'es' if m > 1 else ''}")
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, m, trains), nprocs=P)
            for rank in range(P):
                print(f"  rank {rank}: {Path(folder, f'{rank}.txt').read_text()}")


if __name__ == "__main__":
    main()
