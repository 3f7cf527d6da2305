"""A buffer to which a forward assigns a new tensor stays as it was under GraphPP.

What: self.count = self.count + 1 leaves the count for good at 1, to which torch's shape inference has brought it;
  self.count += 1, which changes the buffer in place, counts each microbatch. Without a trace both count.
Where: torchtitan 0.3.0, torchtitan/experiments/graph_trainer/make_fx_tracer.py, minimal_fx_tracer, which GraphPP
  calls in graph_pp/graph_builder.py, _build_stage_graphs.
Why: while a stage is traced its buffers are stood in for, and what it assigned in the meantime goes with the stand-ins;
  the graph returns the stage's output and gradients, and no buffers.
Requirement: TRN-9.
Schedules: all that GraphPP runs.
Known: no thread about this is known.
Possible fix: return buffers that are other tensors after the forward, and copy them into the module, or refuse them.
"""

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


class Counting(nn.Module):
    """A linear map that counts its calls."""

    def __init__(self, how):
        super().__init__()
        self.map, self.how = nn.Linear(WIDTH, WIDTH), how
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.how == "in place":
            self.count += 1
        else:
            self.count = self.count + 1
        return self.map(x)


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


def told(how):
    torch.manual_seed(0)
    pipeline = pipeline_of(Model([Counting(how) for _ in range(LAYERS)]), "Interleaved1F1B")
    for step in range(2):
        step_of(pipeline, step)
    counts = [int(one) for part in pipeline[1] for one in part.buffers()]
    return [f"counts {counts}, right is {[2 * MICROBATCHES] * len(counts)}"]


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
    for how in ("in place", "by an assignment"):
        print(f"a count that grows {how}:")
        shown(how)
