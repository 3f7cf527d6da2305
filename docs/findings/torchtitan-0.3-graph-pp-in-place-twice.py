"""GraphPP's default passes run operators twice that change something in place.

What: a batch norm's running mean and variance are updated twice for each microbatch, and a leaky ReLU in place, whose
  result the backward needs, multiplies what is negative by its slope twice, so that outputs, losses and gradients are
  wrong. Without passes (--compile.no-enable_passes) all are right.
Where: torchtitan 0.3.0, torchtitan/experiments/graph_trainer, selective_activation_remat.py
  (selective_activation_remat_pass), which is one of the default passes, and graph_pp/partition.py
  (partition_joint_graph, lines 566 to 581). README.md calls the default passes numerics-preserving.
Why: the pass puts a second copy of an operator before what needs its result in the backward. Where the operator changes
  a tensor in place, that tensor is changed again; and an operator without a result that is used stays in both halves
  when the graph is cut into forward and backward. The step did not ask for recomputation: it is the default policy.
Requirement: FWD-14, TRN-9.
Schedules: all that GraphPP runs.
Known: near https://github.com/pytorch/torchtitan/issues/4688 (open), where this pass leaves such a write out.
Possible fix: never compute again what changes something in place, or make graphs functional before the passes.
"""

import copy
import logging
import os
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.experiments.graph_trainer.configs import GraphTrainerCompileConfig
from torchtitan.experiments.graph_trainer.graph_pp.pipeline import graph_pipeline_llm
from torchtitan.tools import utils

LAYERS, RANKS, MICROBATCHES, WIDTH = 4, 2, 4, 3
NEEDS_CUDA = ["cudagraph_pass", "joint_transformer_block_bucketing_reordering_pass"]


class Model(nn.Module):
    """Layers by name, of which the engine leaves one in each of its parts."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleDict({str(i): layer for i, layer in enumerate(layers)})

    def forward(self, x, **kwargs):
        for layer in self.layers.values():
            x = x if layer is None else layer(x, **kwargs)
        return x


def loss_of(output, target, global_valid_tokens=1.0):
    return (output - target).pow(2).sum() / global_valid_tokens, {}


def pipeline_of(model, schedule, passes):
    """The engine's GraphPP runtime, this rank's parts of the model, and whether it has the first and the last."""
    parallelism = ParallelismConfig(
        pipeline_parallel_degree=RANKS,
        pipeline_parallel_schedule=schedule,
        pipeline_parallel_microbatch_size=2,
        pipeline_parallel_layers_per_stage=1,
        pipeline_parallel_first_stage_less_layers=0,
        pipeline_parallel_last_stage_less_layers=0,
    )
    dims = ParallelDims.from_config(parallelism, RANKS)
    dims.build_mesh()
    return graph_pipeline_llm(
        model,
        parallel_dims=dims,
        training=TrainingConfig(local_batch_size=2 * MICROBATCHES),
        parallelism=parallelism,
        compile_config=GraphTrainerCompileConfig(disable_passes=NEEDS_CUDA, enable_passes=passes),
        ac_config=None,
        dump_folder="",
        device=torch.device("cpu"),
        model_config=SimpleNamespace(layers=[None] * LAYERS),
        parallelize_fn=lambda part, **_: part,
        loss_fn=loss_of,
    )


def batch(step):
    torch.manual_seed(step)
    return torch.randn(MICROBATCHES, 2, WIDTH), torch.randn(MICROBATCHES, 2, WIDTH)


def step_of(pipeline, step):
    """One step as the engine's trainer takes it; the losses where the last stage is."""
    runtime, _, has_first, has_last = pipeline
    inputs, targets = batch(step)
    losses = [] if has_last else None
    runtime.step(
        arg_mbs=[(one,) for one in inputs] if has_first else None,
        kwarg_mbs=[{} for _ in range(MICROBATCHES)],
        target_mbs=list(targets) if has_last else None,
        losses=losses,
        loss_kwargs={"global_valid_tokens": torch.tensor(float(MICROBATCHES))},
        return_outputs=False,
    )
    return losses


def told(first, passes):
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), first),
        *(nn.Linear(WIDTH, WIDTH) for _ in range(3)),
    ]
    twin = Model(copy.deepcopy(layers))
    pipeline = pipeline_of(Model(layers), "Interleaved1F1B", passes)
    losses = step_of(pipeline, 0)
    right = [loss_of(twin(one), target, MICROBATCHES)[0] for one, target in zip(*batch(0), strict=True)]
    buffers = dict(twin.named_buffers())
    lines = [
        f"{name.split('.', 3)[3]} {float(mine.flatten()[0]):.4f}, right is {float(buffers[name].flatten()[0]):.4f}"
        for part in pipeline[1]
        for name, mine in part.named_buffers()
    ]
    if losses is not None:
        lines.append(f"losses right: {torch.allclose(torch.stack(losses), torch.stack(right))}")
    return lines


def worker(rank, folder, *given):
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    utils.device_type = parallel_dims.device_type = "cpu"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=30),
    )
    try:
        lines = told(*given)
    except Exception as error:
        lines = [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
        if "peer" in lines[0] or "Connection" in lines[0]:
            lines = ["waits in vain for the other rank"]
    Path(folder, f"rank{rank}").write_text("\n".join(lines))
    os._exit(0)


def shown(*given):
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            mp.get_context("spawn").Process(target=worker, args=(r, folder, *given)) for r in range(RANKS)
        ]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(60)
            one.kill()
        for rank in range(RANKS):
            path = Path(folder, f"rank{rank}")
            for line in (path.read_text() if path.exists() else "no result").splitlines():
                print(f"  rank {rank}: {line}")


if __name__ == "__main__":
    for first in (nn.LeakyReLU(0.5, inplace=True), nn.BatchNorm1d(WIDTH)):
        for passes in (False, True):
            print(f"{type(first).__name__}, {'with the default passes' if passes else 'without passes'}:")
            shown(first, passes)
