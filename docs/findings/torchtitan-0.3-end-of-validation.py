"""A validation under a pipeline leaves out the last samples, or ends in an AssertionError.

What: with steps=-1 a validation is to consume all the data. Under a pipeline a step takes local_batch_size samples,
  microbatch by microbatch; where the data ends within one, the microbatches that were taken are dropped, and the loss
  is that of the other samples. Fewer samples than that are an AssertionError without words. Without a pipeline the
  loader gives a last batch of fewer samples, which counts.
Where: torchtitan 0.3.0, torchtitan/components/validate.py, Validator.validate (lines 263 to 272, and 341).
Why: StopIteration in the loop over microbatches ends the validation. What Validator.Config says of steps:
  "-1 means consuming all the data in the validation dataset".
Requirement: none (uneven batches are not claimed; near TRN-19).
Schedules: all.
Known: https://github.com/pytorch/torchtitan/pull/4301 gives the AssertionError words; no thread about the samples that
  are left out is known.
Possible fix: run what is left over by schedules of fewer microbatches, or filled up with samples whose labels are all
  IGNORE_INDEX; at least say how many samples were left out.
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
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.validate import Validator
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.distributed import utils as dist_utils
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.tools import utils

BATCH, LAYERS, VOCABULARY, WIDTH = 4, 2, 11, 6


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): nn.Linear(WIDTH, WIDTH) for i in range(LAYERS)})
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        for part in (self.tok_embeddings, *self.layers.values(), self.norm, self.lm_head):
            x = x if part is None else part(x)
        return x


class Samples(IterableDataset):
    def __init__(self, count):
        torch.manual_seed(1)
        self.pairs = torch.randint(VOCABULARY, (count, 2, 5))

    def __iter__(self):
        for tokens, labels in self.pairs:
            yield {"input": tokens}, labels


class Data:
    """As the engine's loaders for text are built."""

    def __init__(self, count):
        self.count = count

    def build(self, *, dp_world_size, dp_rank, local_batch_size, **_):
        return ParallelAwareDataloader(
            Samples(self.count), dp_rank, dp_world_size, batch_size=local_batch_size
        )


def validated(count, ranks):
    """The loss that the validator reports on this rank."""
    loss_fn, device = CrossEntropyLoss.Config().build(), torch.device("cpu")
    parallelism = ParallelismConfig(pipeline_parallel_degree=ranks)
    dims = ParallelDims.from_config(parallelism, world_size=ranks)
    dims.build_mesh()
    pipeline, parts = {}, [Decoder()]
    if dims.pp_enabled:
        pipeline["pp_schedule"], parts, pipeline["pp_has_first_stage"], pipeline["pp_has_last_stage"] = (
            pipeline_llm(
                Decoder(),
                parallel_dims=dims,
                training=TrainingConfig(local_batch_size=BATCH),
                parallelism=parallelism,
                compile_config=CompileConfig(),
                ac_config=None,
                dump_folder="",
                device=device,
                model_config=SimpleNamespace(layers=[None] * LAYERS),
                parallelize_fn=lambda part, **_: part,
                loss_fn=loss_fn,
            )
        )
    reported = []
    validator = Validator(
        Validator.Config(steps=-1),
        parallelism=parallelism,
        dp_world_size=1,
        dp_rank=0,
        tokenizer=None,
        parallel_dims=dims,
        loss_fn=loss_fn,
        validation_context=dist_utils.get_spmd_context(parallel_dims=dims),
        metrics_processor=SimpleNamespace(
            ntokens_since_last_log=0, log_validation=lambda loss, step: reported.append(f"{loss:.4f}")
        ),
        seq_len=5,
        local_batch_size=BATCH,
        **pipeline,
    )
    validator.dl_config = Data(count)
    try:
        validator.validate(parts, step=1)
    except AssertionError as error:
        return f"AssertionError({error})"
    return reported[0]


def worker(rank, folder, ranks):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    utils.device_type = parallel_dims.device_type = "cpu"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous{ranks}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    for count in (8, 7, 3):
        found = validated(count, ranks)
        if rank == ranks - 1:
            title = "the model in one piece" if ranks == 1 else "1F1B on 2 ranks"
            print(f"{title}, {count} samples in batches of {BATCH}: {found}")
    if ranks == 1:
        for count in (8, 7, 4, 3):
            tokens, labels = Samples(count).pairs.unbind(1)
            loss = nn.functional.cross_entropy(Decoder()(tokens).flatten(0, 1), labels.flatten())
            print(f"  the loss of the first {count} samples is {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            mp.spawn(worker, (folder, ranks), nprocs=ranks)
