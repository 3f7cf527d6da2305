"""Gradients that are not clipped, or not divided by the loss scale, before the optimizer steps.

What: (a) With dtype torch.float32 (or tf32) `clip_grad_norm` does nothing. (b) With bfloat16 or float16 and
  clip_grad_norm=0, gradients are stepped with the loss scale in them, 65536 times too large. (c) With experts, on a
  rank that has no parameter of the group "fp32", the experts' gradients are clipped by the norm of that group, which is
  0 here: not at all. No error is raised; the losses and the gradient norms that are returned are right.
Where: InternEvo 0.5.3 (develop of January 2025; 0.5.2 is the same here), internlm/solver/optimizer/
  hybrid_zero_optim.py, _step (lines 817 to 859) and _unscale_and_clip_grads (line 943).
Why: both are done in one place, which is passed by for float32 and for clip_grad_norm=0. Gradients are listed for the
  groups that have parameters on this rank, norms for all groups, and the two lists are gone through side by side.
Requirement: none: neither clipping nor a loss scale is claimed (it would be TRN-21 and TRN-24).
Schedules: every one, and training without a pipeline (run here, in one process).
Known: near InternEvo#398 (with CPU offload the same code clips a copy; open).
Possible fix: unscale and clip in every case, and keep gradients by group.

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

SCALE, BIG = 65536, 100.0  # the initial loss scale, and the norm of each group's gradient


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


def configure(dtype, clip):
    from internlm.core.context import Config, ParallelMode, global_context

    one = {"size": 1, "overlap": False}
    parallel = {"pipeline": {"size": 1, "mode": "1F1B"}, "tensor": {"size": 1, "mode": "mtp"}, "weight": one}
    parallel |= {
        "zero1": {"size": 1, "fsdp": False},
        "expert": {"size": -1, "no_tp": False},
        "expert_weight": one,
    }
    scaler = {"growth_factor": 2, "backoff_factor": 0.5, "hysteresis": 2, "max_scale": 2**24}
    zero = {"overlap_sync_param": False, "overlap_sync_grad": False, "reduce_bucket_size": 2**20}
    config = {
        "parallel": parallel,
        "data": {"micro_bsz": 1},
        "model": {"dtype": dtype},
        "grad_scaler": {"fp16": {"initial_scale": SCALE, "min_scale": 1, "growth_interval": 1000}, **scaler},
        "hybrid_zero_optimizer": {**zero, "clip_grad_norm": clip},
    }
    global_context.load_config(Config(config))
    global_context._register_dist(0, 1, dist.group.WORLD, None, [0], ParallelMode.GLOBAL)
    global_context._global_ranks[ParallelMode.GLOBAL] = 0
    if not global_context.is_initialized(ParallelMode.DATA):
        global_context.init_parallel_groups()
        group = global_context.get_group(ParallelMode.DATA)
        for mode in (ParallelMode.EXPERT, ParallelMode.EXPERT_DATA):
            global_context._register_dist(0, 1, group, None, [0], mode)


def stepped(dtype, clip, names):
    """By group, the norm of what a step of SGD with learning rate 1 took; the gradient of each has the norm BIG."""
    from internlm.core.context import ParallelMode, global_context
    from internlm.core.context.parallel_context import IS_TENSOR_EXPERT_DATA_PARALLEL, IS_TENSOR_ZERO_PARALLEL
    from internlm.core.engine import Engine
    from internlm.solver.optimizer.hybrid_zero_optim import HybridZeroOptimizer

    configure(dtype, clip)
    config, groups, parameters = global_context.config, [], {}
    for name in names:
        is_expert = name.startswith("moe")
        mode = ParallelMode.EXPERT_DATA if is_expert else ParallelMode.ZERO1
        group = {"params": [], "name": name, "optimizer_mode": mode, "moe": is_expert}
        if name != "fp32":  # the engine makes this group always, and it is often empty
            parameters[name] = one = nn.Parameter(torch.zeros(4, dtype=dtype))
            setattr(one, IS_TENSOR_EXPERT_DATA_PARALLEL if is_expert else IS_TENSOR_ZERO_PARALLEL, True)
            group["params"] = [one]
        groups.append(group)
    optimizer = HybridZeroOptimizer(
        torch.optim.SGD(groups, lr=1.0),
        grad_scal_cfg=config.grad_scaler,
        zero_cfg=config.hybrid_zero_optimizer,
    )
    engine = Engine(model=nn.Module(), optimizer=optimizer, clip_grad_norm=clip)
    engine.backward(sum(one.sum() * (BIG / 2) for one in parameters.values()))
    engine.step()
    return {name: one.detach().float().norm().item() for name, one in parameters.items()}


def worker(_, folder):
    load_engine()
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    plain, experts = ("default", "fp32"), ("default", "fp32", "moe_ep_size_1")
    cases = [(torch.bfloat16, 1.0, plain), (torch.float32, 1.0, plain), (torch.bfloat16, 0.0, plain)]
    cases += [(torch.bfloat16, 1.0, experts)]
    for dtype, clip, names in cases:
        right = clip or BIG
        words = [
            f"{name} {norm:.2f}, expected {right:.2f}" for name, norm in stepped(dtype, clip, names).items()
        ]
        print(
            f"{str(dtype)[6:]}, clip_grad_norm={clip}, gradients of norm {BIG}: a step of {'; '.join(words)}"
        )


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=1)


if __name__ == "__main__":
    main()
