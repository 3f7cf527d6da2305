"""GraphPP adds a gradient that belongs to two parameters, or to one under two names, up several times over.

What: where a stage has one parameter under two names (tied weights), or adds two parameters to each other before it
  uses them, their gradients are wrong from the first step: g1 + 2 (g2 + g3 + g4) of four microbatches, and of tied
  weights twice that. Losses are right until the optimizer steps. The GraphTrainer without a pipeline doubles the
  gradients of tied weights.
Where: torchtitan 0.3.0, torchtitan/experiments/graph_trainer, graph_pp/graph_builder.py (lines 956 to 974 and 990 to
  1009), graph_pp/runner.py (_accumulate_flat_grad_values_) and common_utils.py (accumulate_param_grads_).
Why: the graph returns one tensor at both places, and microbatches are added up in place, so that each is added twice.
  Of a parameter under two names, which named_parameters(remove_duplicate=False) lists twice, both places hold the
  whole gradient, and both are added to its .grad. The comment in trainer.py says that the list keeps "duplicate
  parameter entries from weight tying".
Requirement: TRN-8, TRN-21, SPL-1.
Schedules: all that GraphPP runs.
Known: no thread about this is known.
Possible fix: list every parameter once where gradients are taken and kept, and begin each sum with a tensor of its own.
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


class Twice(nn.Module):
    """Two linear maps that share their weight."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(torch.tanh(self.one(x)))


class Added(nn.Module):
    """A linear map by the sum of two parameters."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.other = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        return nn.functional.linear(x, self.one + self.other)


def loss_of(output, target, global_valid_tokens=1.0):
    return (output - target).pow(2).sum() / global_valid_tokens, {}


def pipeline_of(model, schedule):
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
        compile_config=GraphTrainerCompileConfig(disable_passes=NEEDS_CUDA),
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


def whole_step(model, step):
    """The same step without a pipeline."""
    losses = []
    for one, target in zip(*batch(step), strict=True):
        loss, _ = loss_of(model(one), target, MICROBATCHES)
        loss.backward()
        losses.append(loss.detach())
    return losses


def wrong_gradients(parts, model):
    """Which gradients are not those of the whole model."""
    right = dict(model.named_parameters())
    found = []
    for part in parts:
        for name, mine in part.named_parameters():
            if not torch.allclose(mine.grad, right[name].grad, atol=1e-5):
                found.append(name)
    return ", ".join(found) or "none"


def told(kind):
    torch.manual_seed(0)
    first = {"own": nn.Linear, "twice": lambda *_: Twice(), "added": lambda *_: Added()}[kind]
    layers = [first(WIDTH, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))]
    model, twin = Model(layers), Model(copy.deepcopy(layers))
    pipeline = pipeline_of(model, "Interleaved1F1B")
    losses, right = step_of(pipeline, 0), whole_step(twin, 0)
    lines = [f"wrong gradients: {wrong_gradients(pipeline[1], twin)}"]
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
    print("every stage with weights of its own:")
    shown("own")
    print("the first stage has one weight under two names:")
    shown("twice")
    print("the first stage adds two parameters:")
    shown("added")
