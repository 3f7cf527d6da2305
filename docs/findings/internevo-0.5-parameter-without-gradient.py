"""A step in which one parameter got no gradient ends in an AssertionError of the optimizer.

What: where no microbatch of a step uses some parameter (a projection of images, in a batch of texts only),
  engine.step() raises "AssertionError: fp32 param and grad have different shape". In a pipeline only the ranks that own
  such a parameter raise, and others wait for them. torch's optimizers leave such a parameter as it is.
Where: InternEvo 0.5.3 (develop of January 2025; 0.5.2 is the same here), internlm/solver/optimizer/
  hybrid_zero_optim.py, _sync_grad (lines 629 to 637) and _step (lines 824 to 840).
Why: the gradients of a group that are there are listed one behind the other, and the list is taken for that of all
  parameters.
Requirement: none: the suite's optimizer is torch's (it would be TRN-6 and TRN-14).
Schedules: every one, and training without a pipeline (run here, in one process).
Known: near ColossalAI#3412 (the same assertion in the code that this comes from; closed).
Possible fix: list zeros for a parameter without a gradient.

The engine runs on CUDA devices; here it runs on CPU with gloo, with three calls of its accelerator patched (below).
"""

import logging
import os
import sys
import tempfile
import warnings
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


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
    get_accelerator().current_stream = lambda: SimpleNamespace(synchronize=lambda: None)  # of a timer


def configure():
    from internlm.core.context import Config, ParallelMode, global_context

    one = {"size": 1, "overlap": False}
    parallel = {"pipeline": {"size": 1, "mode": "1F1B"}, "tensor": {"size": 1, "mode": "mtp"}, "weight": one}
    parallel |= {
        "zero1": {"size": 1, "fsdp": False},
        "expert": {"size": -1, "no_tp": False},
        "expert_weight": one,
    }
    scaler = dict.fromkeys(("growth_factor", "backoff_factor", "hysteresis", "max_scale"), 1)
    zero = {"overlap_sync_param": False, "overlap_sync_grad": False, "reduce_bucket_size": 2**20}
    config = {
        "parallel": parallel,
        "data": {"micro_bsz": 1},
        "model": {"dtype": torch.float32},
        "grad_scaler": {"fp16": {"initial_scale": 1, "min_scale": 1, "growth_interval": 1}, **scaler},
        "hybrid_zero_optimizer": {**zero, "clip_grad_norm": 0.0},
    }
    global_context.load_config(Config(config))
    global_context._register_dist(0, 1, dist.group.WORLD, None, [0], ParallelMode.GLOBAL)
    global_context._global_ranks[ParallelMode.GLOBAL] = 0
    global_context.init_parallel_groups()


def stepped(uses_image):
    from internlm.core.context import ParallelMode, global_context
    from internlm.core.engine import Engine
    from internlm.solver.optimizer.hybrid_zero_optim import HybridZeroOptimizer

    model = nn.ModuleDict({"text": nn.Linear(3, 3), "image": nn.Linear(3, 3)})
    group = {"params": list(model.parameters()), "name": "default", "optimizer_mode": ParallelMode.ZERO1}
    optimizer = HybridZeroOptimizer(
        torch.optim.SGD([group], lr=1.0),
        grad_scal_cfg=global_context.config.grad_scaler,
        zero_cfg=global_context.config.hybrid_zero_optimizer,
    )
    engine = Engine(model=model, optimizer=optimizer)
    x = torch.ones(2, 3)
    output = model["text"](x) + (model["image"](x) if uses_image else 0)
    engine.backward(output.sum())
    before = model["text"].bias.detach().clone()
    try:
        engine.step()
    except AssertionError as error:
        return f"AssertionError: {error}"
    changes = [f"{one:.4f}" for one in (before - model["text"].bias.detach()).tolist()]
    return f"text.bias changes by {', '.join(changes)}; expected 2.0 each"


def worker(_, folder):
    load_engine()
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    configure()
    for uses_image in (True, False):
        print(f"{'with' if uses_image else 'without'} an image: {stepped(uses_image)}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=1)


if __name__ == "__main__":
    main()
