"""V-shaped zero bubble, replicas and `overlap_sync_grad=True`: gradients of the first rank are not averaged.

What: on the first pipeline rank of every replica, norms are stepped with that replica's own gradients: nothing averages
  them, and the replicas' weights drift apart (with ZeRO, the gradient of one replica counts for all). With fewer
  microbatches than the scheduler was made with (an increasing batch size, rampup_batch_size), the same holds for every
  weight there. No error is raised, and the losses are right. With overlap_sync_grad=False gradients are averaged.
Where: InternEvo 0.5.3 (develop of January 2025), internlm/solver/optimizer/hybrid_zero_optim.py,
  _attach_reduction_hook (lines 398 to 418); hybrid_zero_optim_v2.py, line 924; internlm/core/scheduler/
  pipeline_scheduler_zb.py, _schedule_backward (line 520).
Why: in the zero-bubble modes the hook that reduces a gradient is left to WeightGradStore, for every parameter but an
  embedding's. The store runs it after the weight gradients that it computes, those of the engine's linear layers; those
  of norms, and of any other layer, never come to it. And hooks reduce only while `skip_grad_reduce` is False, which
  ZBV sets in the backward whose number is the constructor's number of microbatches, not the step's. With overlap,
  step() reduces nothing else.
Requirement: none: replicas are not claimed (it would be DPC-1).
Schedules: ZeroBubblePipelineVShapeScheduler, whose first rank is the only one that overlaps (train/pipeline.py, line
  538); for ZBH1 the launcher refuses overlap_sync_grad, for ZBV it does not. The engine's model configurations have
  overlap_sync_grad=True.
Known: no thread about this is known.
Possible fix: leave only weights that the store is given to its hooks (or refuse the option for ZBV, as for ZBH1), and
  compare with self.num_microbatches.

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

P, REPLICAS, WIDTH, MADE_FOR = 2, 2, 4, 8
CASES = ((True, 8), (False, 8), (True, 4), (False, 4))  # overlap_sync_grad, microbatches of the step


def make_stage(index):
    """A norm and a linear layer, both the engine's."""
    from internlm.core.context import ParallelMode, global_context
    from internlm.core.parallel.comm.tensor import LinearRole, TensorParallelCommunicator
    from internlm.model.modules.linear import ColumnParallelLinear
    from internlm.model.modules.norm import new_layer_norm

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(index)
            self.norm, self.linear = (
                new_layer_norm("rmsnorm", WIDTH),
                ColumnParallelLinear(WIDTH, WIDTH, bias=False),
            )
            group = global_context.get_group(ParallelMode.TENSOR)
            self.linear.register_communicator(TensorParallelCommunicator(group, LinearRole.COLUMN))

        def forward(self, hidden=None, x=None):
            return self.linear(self.norm(x if hidden is None else hidden))

    return Stage()


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
    parallel = {"pipeline": {"size": P, "mode": "ZBV"}, "tensor": {"size": 1, "mode": "mtp"}, "weight": one}
    parallel |= {
        "zero1": {"size": 1, "fsdp": False},
        "expert": {"size": -1, "no_tp": False},
        "expert_weight": one,
    }
    scaler = dict.fromkeys(("growth_factor", "backoff_factor", "hysteresis", "max_scale"), 1)
    config = {
        "parallel": parallel,
        "data": {"micro_bsz": 1},
        "model": {"dtype": torch.float32, "num_chunks": 2},
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
    global_context.v_shape = True
    global_context.init_parallel_groups()


def data_of(replica, m):
    torch.manual_seed(100 + replica)
    return torch.randn(2, m, WIDTH)


def stepped(overlaps, m):
    """What a step of SGD with learning rate 1 took from this rank's parameters: their gradients."""
    from internlm.core.context import ParallelMode, global_context
    from internlm.core.engine import Engine
    from internlm.core.scheduler import ZeroBubblePipelineVShapeScheduler
    from internlm.solver.optimizer.hybrid_zero_optim import HybridZeroOptimizer

    rank, replica = (global_context.get_local_rank(one) for one in (ParallelMode.PIPELINE, ParallelMode.DATA))
    config = global_context.config
    config.hybrid_zero_optimizer.overlap_sync_grad = (
        overlaps and rank == 0
    )  # as the engine's initialize_optimizer does
    owned = {s: make_stage(s) for s in (rank, 2 * P - 1 - rank)}
    chunks = nn.ModuleList(owned.values())
    group = {"params": list(chunks.parameters()), "name": "default", "optimizer_mode": ParallelMode.ZERO1}
    optimizer = HybridZeroOptimizer(
        torch.optim.SGD([group], lr=1.0),
        grad_scal_cfg=config.grad_scaler,
        zero_cfg=config.hybrid_zero_optimizer,
    )
    engine = Engine(model=chunks, optimizer=optimizer, criterion=nn.functional.mse_loss)
    scheduler = ZeroBubblePipelineVShapeScheduler(
        MADE_FOR, num_chunks=2, tensor_shape=(1, WIDTH), scheduler_hooks=[], optimizer=optimizer
    )
    scheduler.pre_processing(engine)
    x, y = data_of(replica, m)
    scheduler.forward_backward_step(engine, iter([({"x": x}, y)]))
    before = {name: one.detach().clone() for name, one in chunks.named_parameters()}
    engine.step()
    taken = {name: before[name] - one.detach() for name, one in chunks.named_parameters()}
    return {(s, one): taken[f"{k}.{one}.weight"] for k, s in enumerate(owned) for one in ("norm", "linear")}


def expected(m):
    """The same of the model in one piece, on the data of all replicas."""
    stages = [make_stage(s) for s in range(2 * P)]
    for replica in range(REPLICAS):
        x, y = data_of(replica, m)
        hidden = stages[0](x=x)
        for stage in stages[1:]:
            hidden = stage(hidden)
        (nn.functional.mse_loss(hidden, y) / REPLICAS).backward()
    return {(s, one): getattr(stages[s], one).weight.grad for s in range(2 * P) for one in ("norm", "linear")}


def worker(rank, folder):
    load_engine()
    from internlm.core.context import global_context

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=P * REPLICAS,
        timeout=timedelta(seconds=30),
    )
    configure(rank)
    for overlaps, m in CASES:
        found = [None] * (P * REPLICAS)
        dist.all_gather_object(found, stepped(overlaps, m))
        if rank > 0:
            continue
        print(f"overlap_sync_grad={overlaps}, {m} microbatches, scheduler made for {MADE_FOR}")
        global_context.config.parallel.pipeline.mode = (
            "1F1B"  # the model in one piece leaves nothing to a store
        )
        right = expected(m)
        global_context.config.parallel.pipeline.mode = "ZBV"
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
