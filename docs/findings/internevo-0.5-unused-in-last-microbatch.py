"""Replicas and `overlap_sync_grad=True`: what the last microbatch does not use is not averaged.

What: a parameter that the last microbatch of a step does not use (a projection of images in a batch whose last
  microbatch is text only) is stepped with each replica's own gradient on the pipeline's first rank: nothing averages
  it, without an error, and the replicas' weights drift apart (with ZeRO, the gradient of one replica counts for all).
  With overlap_sync_grad=False gradients are averaged.
Where: InternEvo 0.5.3 (develop of January 2025; 0.5.2 is the same here), internlm/solver/optimizer/
  hybrid_zero_optim.py, _attach_reduction_hook and step; internlm/core/scheduler/pipeline_scheduler_1f1b.py (0.5.2:
  pipeline_scheduler.py), _backward_step.
Why: gradients are added up without communication until the last microbatch; in its backward, hooks on the accumulation
  of each gradient reduce what is there. Where nothing is accumulated no hook runs, and step() only empties the buckets
  that hooks have filled.
Requirement: none: replicas are not claimed (it would be DPC-3).
Schedules: PipelineScheduler (run here); the others and training without a pipeline set the same flag.
Known: no thread about this is known.
Possible fix: let step() put into the buckets every gradient that no hook has put there, on all replicas in one order.

The engine runs on CUDA devices; here it runs on CPU with gloo, with three calls of its accelerator patched (below).
"""

import logging
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

P, REPLICAS, WIDTH, M = 2, 2, 4, 4
CASES = ((True, 0), (False, 0), (True, M - 1))  # overlap_sync_grad, the microbatch that has an image


class Stage(nn.Module):
    """The first stage adds what an image gives, if the microbatch has one (its first number is not 0)."""

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.text = nn.Linear(WIDTH, WIDTH)
        self.image = nn.Linear(WIDTH, WIDTH) if index == 0 else None

    def forward(self, hidden=None, x=None, images=None):
        output = self.text(x if hidden is None else hidden)
        if self.image is not None and images.any():
            output = output + self.image(images)
        return torch.tanh(output)


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


def configure(rank):
    from internlm.core.context import Config, ParallelMode, global_context

    one = {"size": 1, "overlap": False}
    parallel = {"pipeline": {"size": P, "mode": "1F1B"}, "tensor": {"size": 1, "mode": "mtp"}, "weight": one}
    parallel |= {
        "zero1": {"size": 1, "fsdp": False},
        "expert": {"size": -1, "no_tp": False},
        "expert_weight": one,
    }
    scaler = dict.fromkeys(("growth_factor", "backoff_factor", "hysteresis", "max_scale"), 1)
    config = {
        "parallel": parallel,
        "data": {"micro_bsz": 1},
        "model": {"dtype": torch.float32},
        "grad_scaler": {"fp16": {"initial_scale": 1, "min_scale": 1, "growth_interval": 1}, **scaler},
        "hybrid_zero_optimizer": {
            "overlap_sync_param": False,
            "reduce_bucket_size": 2**20,
            "clip_grad_norm": 0.0,
        },
    }
    global_context.load_config(Config(config))
    world = list(range(P * REPLICAS))
    global_context._register_dist(rank, len(world), dist.group.WORLD, None, world, ParallelMode.GLOBAL)
    global_context._global_ranks[ParallelMode.GLOBAL] = rank
    global_context.init_parallel_groups()


def data_of(replica, with_image):
    torch.manual_seed(100 + replica)
    x, y, images = torch.randn(3, M, WIDTH)
    images[[m for m in range(M) if m != with_image]] = 0
    return {"x": x, "images": images}, y


def stepped(overlaps, with_image):
    """What a step of SGD with learning rate 1 took from this rank's parameters: their gradients."""
    from internlm.core.context import ParallelMode, global_context
    from internlm.core.engine import Engine
    from internlm.core.scheduler import PipelineScheduler
    from internlm.solver.optimizer.hybrid_zero_optim import HybridZeroOptimizer

    rank, replica = (global_context.get_local_rank(one) for one in (ParallelMode.PIPELINE, ParallelMode.DATA))
    config = global_context.config
    config.hybrid_zero_optimizer.overlap_sync_grad = (
        overlaps and rank == 0
    )  # as the engine's initialize_optimizer does
    stage = Stage(rank)
    group = {"params": list(stage.parameters()), "name": "default", "optimizer_mode": ParallelMode.ZERO1}
    optimizer = HybridZeroOptimizer(
        torch.optim.SGD([group], lr=1.0),
        grad_scal_cfg=config.grad_scaler,
        zero_cfg=config.hybrid_zero_optimizer,
    )
    engine = Engine(model=stage, optimizer=optimizer, criterion=nn.functional.mse_loss)
    scheduler = PipelineScheduler(M, scheduler_hooks=[])
    scheduler.pre_processing(engine)
    scheduler.forward_backward_step(engine, iter([data_of(replica, with_image)]))
    before = {name: one.detach().clone() for name, one in stage.named_parameters()}
    engine.step()
    return {(rank, name): before[name] - one.detach() for name, one in stage.named_parameters()}


def expected(with_image):
    """The same of the model in one piece, on the data of all replicas."""
    stages = [Stage(s) for s in range(P)]
    for replica in range(REPLICAS):
        fields, y = data_of(replica, with_image)
        for m in range(M):
            hidden = stages[0](**{name: one[m : m + 1] for name, one in fields.items()})
            loss = nn.functional.mse_loss(stages[1](hidden), y[m : m + 1])
            (loss / M / REPLICAS).backward()
    return {(s, name): one.grad for s, stage in enumerate(stages) for name, one in stage.named_parameters()}


def worker(rank, folder):
    load_engine()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=P * REPLICAS,
        timeout=timedelta(seconds=30),
    )
    configure(rank)
    for overlaps, with_image in CASES:
        found = [None] * (P * REPLICAS)
        dist.all_gather_object(found, stepped(overlaps, with_image))
        if rank > 0:
            continue
        print(f"overlap_sync_grad={overlaps}, an image in microbatch {with_image} of 0 to {M - 1}")
        right = expected(with_image)
        for where in right:
            norms = [f"{one[where].norm():.4f}" for one in found if where in one]
            all_right = all(
                torch.allclose(one[where], right[where], atol=1e-5) for one in found if where in one
            )
            words = "averaged" if all_right else f"not averaged, norms {' and '.join(norms)}"
            print(f"  stage {where[0]}, {where[1]}: {words}; expected {right[where].norm():.4f}")
    dist.barrier()


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=P * REPLICAS)


if __name__ == "__main__":
    main()
