"""Under DualPipeV the loss that is written to TensorBoard and W&B is -1.

What: metrics are logged by one rank. For ZBVZeroBubble that is the first, which has the last stage; for DualPipeV,
  whose stages are placed in the same way, it is the last rank of the pipeline, as for all other schedules. That rank
  has no loss, but the -1 that the trainer returns where the last stage is elsewhere. Validation losses go the same way.
  A name in other letters, which is taken otherwise ("zbvzerobubble"), has the same effect.
Where: torchtitan 0.3.0, torchtitan/components/metrics.py, _get_metrics_rank (line 251) and ensure_pp_loss_visible
  (line 211), which asks for the log of the wrong rank. The stages are placed in
  torchtitan/distributed/pipeline_parallel.py, _get_pp_rank_to_stage_indices_mapping (line 561).
Why: both compare the name with "ZBVZeroBubble", while the placement asks for the two classes of schedules.
  The documentation of save_for_all_ranks says that the metrics are those of the rank that computes the loss.
Requirement: none (what a trainer reports is not the pipeline's return value).
Schedules: DualPipeV; ZBVZeroBubble in other letters.
Known: https://github.com/pytorch/torchtitan/pull/935, in which ZBVZeroBubble was mended; none about DualPipeV.
Possible fix: ask the class of the schedule, as the placement does, or which rank has the last stage.
"""

import logging
import os
import tempfile
import warnings
from datetime import timedelta
from types import SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchtitan.components import metrics
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.tools import utils
from torchtitan.trainer import Trainer

M, LAYERS, VOCABULARY, WIDTH = 8, 4, 11, 6
written = []


class Block(nn.Linear):
    def forward(self, x):
        return x + super().forward(x)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block(WIDTH, WIDTH) for i in range(LAYERS)})
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        for part in (self.tok_embeddings, *self.layers.values(), self.norm, self.lm_head):
            x = x if part is None else part(x)
        return x


class Written:
    """In the place of TensorBoard's writer."""

    def __init__(self, folder, tag):
        pass

    def log(self, values, step):
        written.append(values["loss_metrics/global_avg_loss"])


class NoMemory:
    """In the place of the monitor of a GPU's memory."""

    device_name = "cpu"

    def reset_peak_stats(self):
        pass

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)


def trainer_of(schedule):
    """The engine's trainer with what its train_step uses, all of it the engine's own."""
    parallelism = ParallelismConfig(pipeline_parallel_degree=2, pipeline_parallel_schedule=schedule)
    training = TrainingConfig(local_batch_size=M)
    trainer = object.__new__(Trainer)
    trainer.config = SimpleNamespace(parallelism=parallelism, training=training)
    dims = trainer.parallel_dims = ParallelDims.from_config(parallelism, world_size=2)
    dims.build_mesh()
    trainer.device, trainer.model_config = torch.device("cpu"), None
    trainer.loss_fn = CrossEntropyLoss.Config().build()
    trainer.pp_schedule, trainer.model_parts, trainer.pp_has_first_stage, trainer.pp_has_last_stage = (
        pipeline_llm(
            Decoder(),
            parallel_dims=dims,
            training=training,
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
            device=trainer.device,
            model_config=SimpleNamespace(layers=[None] * LAYERS),
            parallelize_fn=lambda part, **_: part,
            loss_fn=trainer.loss_fn,
        )
    )
    adam = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.1})
    trainer.optimizers = OptimizersContainer(
        OptimizersContainer.Config(param_groups=[adam], implementation="for-loop"),
        model_parts=trainer.model_parts,
    )
    trainer.lr_schedulers = LRSchedulersContainer.Config().build(
        optimizers=trainer.optimizers, training_steps=9
    )
    trainer.metrics_processor = metrics.MetricsProcessor(
        metrics.MetricsProcessor.Config(enable_tensorboard=True), parallel_dims=dims, pp_schedule=schedule
    )
    trainer.metrics_processor.num_flops_per_token = 1
    trainer.train_context = dist_utils.get_spmd_context(parallel_dims=dims)
    trainer.checkpointer = SimpleNamespace(maybe_wait_for_staging=lambda: None)
    trainer.gradient_accumulation_steps, trainer.num_pipeline_parallel_microbatches = 1, M
    trainer.step, trainer.ntokens_seen = 1, 0
    return trainer


def worker(rank, folder):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    utils.device_type = parallel_dims.device_type = "cpu"
    metrics.TensorBoardLogger, metrics.build_device_memory_monitor = Written, NoMemory
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    torch.manual_seed(1)
    tokens, labels = torch.randint(VOCABULARY, (2, M, 1, 5))
    whole = nn.functional.cross_entropy(Decoder()(tokens).flatten(0, 2), labels.flatten())
    if rank == 0:
        print(f"the model in one piece: loss {float(whole):.4f}")
    for schedule in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "zbvzerobubble"):
        written.clear()
        trainer = trainer_of(schedule)
        data = [({"input": x}, y) for x, y in zip(tokens, labels, strict=True)]
        trainer.train_step(trainer.batch_generator(data))
        found = [None, None]
        dist.all_gather_object(found, (trainer.pp_has_last_stage, list(written)))
        if rank == 0:
            (last,) = (r for r, one in enumerate(found) if one[0])
            ((who, losses),) = ((r, one[1]) for r, one in enumerate(found) if one[1])
            shown = ", ".join(f"{loss:.4f}" for loss in losses)
            print(f"{schedule}: rank {last} has the last stage; rank {who} writes the loss {shown}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=2)
