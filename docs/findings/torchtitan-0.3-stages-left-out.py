"""A schedule of one stage per rank leaves the other stages out, and the ranks hang.

What: module_fqns_per_model_part may name more parts than the pipeline has ranks. Under 1F1B and GPipe each rank then
  makes several stages, and the schedule is given the first of them: the ranks wait for what the others would send. With
  pipeline_parallel_layers_per_stage the same split is refused in words.
Where: torchtitan 0.3.0, torchtitan/distributed/pipeline_parallel.py, _build_pipeline_schedule (line 341, stages[0]);
  the check is in _get_pipeline_metadata (line 246), which does not see the user's parts.
Why: the number of stages per rank is checked where the engine chooses the parts, and not where the user does.
Requirement: none (near ERR-11; the adapter names no parts).
Schedules: 1F1B, GPipe.
Known: https://github.com/pytorch/torchtitan/pull/568, of 2024 and open, is about this hang.
Possible fix: raise where a schedule of single stages is given more than one.
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
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.distributed.pipeline_parallel import pipeline_llm

M, LAYERS, VOCABULARY, WIDTH = 4, 2, 11, 6
PARTS = [["tok_embeddings"], ["layers.0"], ["layers.1"], ["norm", "lm_head"]]


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


def step(schedule, tokens, labels, **options):
    """One step on this rank: its loss, if it has the last stage."""
    parallelism = ParallelismConfig(
        pipeline_parallel_degree=2, pipeline_parallel_schedule=schedule, **options
    )
    dims = ParallelDims.from_config(parallelism, world_size=2)
    dims.build_mesh()
    built, _, first, last = pipeline_llm(
        Decoder(),
        parallel_dims=dims,
        training=TrainingConfig(local_batch_size=M),
        parallelism=parallelism,
        compile_config=CompileConfig(),
        ac_config=None,
        dump_folder="",
        device=torch.device("cpu"),
        model_config=SimpleNamespace(layers=[None] * LAYERS),
        parallelize_fn=lambda part, **_: part,
        loss_fn=CrossEntropyLoss.Config().build(),
    )
    losses = [] if last else None
    built.step(
        arg_mbs=[(one,) for one in tokens] if first else None,
        target_mbs=list(labels) if last else None,
        losses=losses,
        loss_kwargs={"global_valid_tokens": torch.tensor(labels.numel())},
        return_outputs=False,
    )
    return f"loss {float(sum(losses)):.4f}" if last else "done"


def worker(rank, folder, schedule, options):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    parallel_dims.device_type = "cpu"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{schedule}", rank=rank, world_size=2,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    torch.manual_seed(1)
    tokens, labels = torch.randint(VOCABULARY, (2, M, 1, 5))
    try:
        result = step(schedule, tokens, labels, **options)
    except ValueError as error:
        result = f"ValueError: {str(error)[:70]}..."
    Path(folder, f"rank{rank}").write_text(result)
    os._exit(0)


def told(title, schedule, **options):
    print(f"{title}, {schedule}:")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            mp.get_context("spawn").Process(target=worker, args=(r, folder, schedule, options))
            for r in (0, 1)
        ]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(40)
        for rank, one in enumerate(ranks):
            one.kill()
            path = Path(folder, f"rank{rank}")
            result = path.read_text() if path.exists() else "no result after 40 seconds"
            print(f"  rank {rank}: {result}")


if __name__ == "__main__":
    told("four parts named", "Interleaved1F1B", module_fqns_per_model_part=PARTS)
    told("one layer per stage, which is four parts", "1F1B", pipeline_parallel_layers_per_stage=1)
    told("four parts named", "1F1B", module_fqns_per_model_part=PARTS)
