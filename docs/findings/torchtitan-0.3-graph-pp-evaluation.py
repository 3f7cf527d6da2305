"""Under GraphPP a validation ends in an error; called as it can be, it computes in training mode.

What: the engine's Validator raises on every rank before a training step, and after one on the rank that has the last
  stage, while others wait. If eval() is given the loss's keyword arguments and told to return no outputs, it evaluates
  by the graphs of training: batch norm uses the batch's mean and variance, and changes its buffers. Under DualPipeV an
  evaluation leaves out the forwards that are to overlap a backward.
Where: torchtitan 0.3.0, torchtitan/components/validate.py (Validator.validate) and
  torchtitan/experiments/graph_trainer/graph_pp (graph_builder.py, lines 346 and 843; runner.py, eval).
Why: the graphs of a stage are made once, in the first step, and need backward metadata. The last one has the loss's
  keyword arguments among its inputs, which the validator does not give, and returns the loss, which torch then takes
  for an output and concatenates.
Requirement: LIF-1, LIF-2, TRN-19.
Schedules: all that GraphPP runs.
Known: https://github.com/pytorch/torchtitan/pull/4742 (closed) gives the validator both. The RFC of GraphPP,
  https://github.com/pytorch/torchtitan/issues/3780, lets an evaluation run the stages' graphs; that these are those of
  training it does not say.
Possible fix: make graphs for evaluation of their own, without a backward, when a step is evaluated.
"""

import contextlib
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
from torchtitan.components.validate import Validator
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


class Samples:
    """What the validator takes for its data, and for where it reports a loss."""

    ntokens_since_last_log = 0

    def build(self, **_):
        return self

    def __iter__(self):
        return iter([({"input": one}, target) for one, target in zip(*batch(1), strict=True)])

    def log_validation(self, *, loss, step):
        self.loss = loss


def validated(pipeline):
    """What the engine's validator reports."""
    runtime, parts, has_first, has_last = pipeline
    samples = Samples()
    parallelism = ParallelismConfig(pipeline_parallel_degree=RANKS, pipeline_parallel_microbatch_size=2)
    dims = ParallelDims.from_config(parallelism, RANKS)
    dims.build_mesh()
    validator = Validator(
        Validator.Config(steps=1),
        parallelism=parallelism,
        dp_world_size=1,
        dp_rank=0,
        tokenizer=None,
        parallel_dims=dims,
        loss_fn=lambda output, target: loss_of(output, target, 1.0),
        validation_context=contextlib.nullcontext,
        metrics_processor=samples,
        seq_len=1,
        local_batch_size=2 * MICROBATCHES,
        pp_schedule=runtime,
        pp_has_first_stage=has_first,
        pp_has_last_stage=has_last,
    )
    validator.dl_config = samples
    validator.validate(parts, step=1)
    return [f"validated, loss {samples.loss:.3f}"]


def evaluated(pipeline, **options):
    """What an evaluation computes that gives the loss's keyword arguments."""
    runtime, parts, has_first, has_last = pipeline
    inputs, targets = batch(1)
    for part in parts:
        part.eval()
    losses = [] if has_last else None
    with torch.no_grad():
        runtime.eval(
            arg_mbs=[(one,) for one in inputs] if has_first else None,
            kwarg_mbs=[{} for _ in range(MICROBATCHES)],
            target_mbs=list(targets) if has_last else None,
            losses=losses,
            loss_kwargs={"global_valid_tokens": torch.tensor(1.0)},
            **options,
        )
    return losses


def told(how, mode):
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)),
        *(nn.Linear(WIDTH, WIDTH) for _ in range(3)),
    ]
    pipeline = pipeline_of(Model(layers), "Interleaved1F1B")
    if how == "at once":
        return validated(pipeline)
    step_of(pipeline, 0)
    if how == "as the engine does":
        return validated(pipeline)
    if how == "with the loss's arguments":
        evaluated(pipeline)
        return ["evaluated"]
    before = [one.clone() for part in pipeline[1] for one in part.buffers()]
    losses = evaluated(pipeline, return_outputs=False)
    lines = []
    if before:
        after = [one for part in pipeline[1] for one in part.buffers()]
        kept = all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        lines.append(f"the evaluation left the buffers as they were: {kept}")
    # what the step before has made of the buffers of stage 0 is known on its rank only
    state = [pipeline[1][0].layers["0"][1].state_dict() if before else None]
    dist.broadcast_object_list(state, src=0)
    if losses is not None:
        whole = Model(layers)
        for name in mode:
            whole.train(name == "training")
            whole.layers["0"][1].load_state_dict(state[0])
            right = [loss_of(whole(one), target, 1.0)[0] for one, target in zip(*batch(1), strict=True)]
            same = torch.allclose(torch.stack(losses), torch.stack(right))
            lines.append(f"losses are those of the model in {name} mode: {same}")
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
    for how in ("at once", "as the engine does", "with the loss's arguments", "and without outputs"):
        print(f"validation {how}:")
        shown(how, ("evaluation", "training"))
