"""With FSDP the optimizer's state cannot be saved: save_checkpoint ends in an UnboundLocalError.

What: `save_optimizer_checkpoint` raises for every optimizer but the two of ZeRO. With ``parallel.zero1.fsdp`` the
  engine makes a `FSDPadaptOptimizer`, so a training with FSDP ends when it saves for the first time; the weights are
  written by then. `HybridZeroOptimizer` is right.
Where: InternEvo 0.5.3 (develop of January 2025), internlm/checkpoint/components.py,
  save_optimizer_checkpoint (line 419).
Why: the name of the file is made in the branch for ZeRO's optimizers alone; the other branch uses it.
Why it is one: the class exists to "reserve some necessary components of hybird-optim", of which the docstring names
  "state_dict and load_state_dict", and load_model_checkpoint has a case for the shards of FSDP.
Requirement: none (the adapter's optimizer is torch's; with FSDP the engine refuses pipelines). Near LIF-10.
Schedules: none: training without a pipeline (run here, in one process).
Known: no thread about this is known.
Possible fix: make the name before the branches.

The engine runs on CUDA devices; here it runs on CPU with gloo, with three calls of its accelerator patched (below).
"""

import logging
import os
import sys
import tempfile
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


class Absent(MetaPathFinder, Loader):
    """Packages that the engine's models and data sets want, with whatever is asked of them."""

    names = ("datasets", "PIL", "safetensors", "transformers")

    def __init__(self):
        self.missing = [name for name in self.names if find_spec(name) is None]

    def find_spec(self, name, path, target=None):
        wanted = name.partition(".")[0] in self.missing
        return spec_from_loader(name, self, is_package=True) if wanted else None

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = self.anything
        return module

    def anything(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

    def exec_module(self, module):
        """Nothing is in it."""


def load_engine():
    """Import the engine; also without packages that its data sets and models want, and without CUDA."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.meta_path.append(Absent())
    import internlm.checkpoint.components  # noqa: F401
    from internlm.accelerator import get_accelerator

    get_accelerator().is_available = lambda: False
    get_accelerator().synchronize = lambda: None
    get_accelerator().current_stream = lambda: SimpleNamespace(synchronize=lambda: None)  # of a timer


def configure(fsdp):
    from internlm.core.context import Config, ParallelMode, global_context

    one = {"size": 1, "overlap": False}
    parallel = {"pipeline": {"size": 1, "mode": "1F1B"}, "tensor": {"size": 1, "mode": "mtp"}, "weight": one}
    parallel |= {
        "zero1": {"size": 1, "fsdp": fsdp},
        "expert": {"size": -1, "no_tp": False},
        "expert_weight": one,
    }
    scaler = {"growth_factor": 2, "backoff_factor": 0.5, "hysteresis": 2, "max_scale": 2**24}
    zero = {"overlap_sync_param": False, "overlap_sync_grad": False, "reduce_bucket_size": 2**20}
    config = {
        "parallel": parallel,
        "data": {"micro_bsz": 1},
        "model": {"dtype": torch.float32},
        "grad_scaler": {"fp16": {"initial_scale": 1, "min_scale": 1, "growth_interval": 1000}, **scaler},
        "hybrid_zero_optimizer": {**zero, "clip_grad_norm": 0.0},
    }
    global_context.load_config(Config(config))
    global_context._register_dist(0, 1, dist.group.WORLD, None, [0], ParallelMode.GLOBAL)
    global_context._global_ranks[ParallelMode.GLOBAL] = 0
    if not global_context.is_initialized(ParallelMode.DATA):
        global_context.init_parallel_groups()


def saved(fsdp, folder):
    """What saving does with the optimizer that the engine makes for the configuration."""
    from internlm.checkpoint.components import save_optimizer_checkpoint
    from internlm.core.context import ParallelMode, global_context
    from internlm.core.context.parallel_context import IS_TENSOR_ZERO_PARALLEL
    from internlm.solver.optimizer import FSDPadaptOptimizer, HybridZeroOptimizer

    configure(fsdp)
    config = global_context.config
    weight = nn.Parameter(torch.ones(4))
    setattr(weight, IS_TENSOR_ZERO_PARALLEL, True)
    group = {"params": [weight], "name": "default", "optimizer_mode": ParallelMode.ZERO1}
    optimizer = (FSDPadaptOptimizer if fsdp else HybridZeroOptimizer)(
        torch.optim.Adam([group]), grad_scal_cfg=config.grad_scaler, zero_cfg=config.hybrid_zero_optimizer
    )
    try:
        save_optimizer_checkpoint(optimizer, folder)
    except UnboundLocalError as error:
        return f"{type(optimizer).__name__}: UnboundLocalError: {error}"
    names = sorted(path.name for path in Path(folder).glob("optimizer*"))
    return f"{type(optimizer).__name__}: wrote {', '.join(names)}"


def worker(_, folder):
    load_engine()
    from internlm.utils.storage_manager import init_storage_manager

    init_storage_manager(True, None, False)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    for fsdp in (False, True):
        with tempfile.TemporaryDirectory() as state:
            print(f"fsdp={fsdp}: {saved(fsdp, state)}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(folder,), nprocs=1)


if __name__ == "__main__":
    main()
