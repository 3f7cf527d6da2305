"""Parameter groups of the optimizer work only where every part of the model has parameters of every group.

What: each group names its parameters by a pattern. The optimizers are built for one part of the model after the other,
  and a pattern that matches nothing in one part is a ValueError. Where a pipeline has parts without embeddings, an
  own learning rate for embeddings stops some ranks, and the others wait for them. The same happens without groups where
  a part has nothing to train, such as a frozen embedding that is a stage of its own.
Where: torchtitan 0.3.0, torchtitan/components/optimizer/optimizer.py, OptimizersContainer._build_param_groups
  (line 201), called for every part in __init__ (line 226).
Why: the check is meant for the whole model, and is made for every part. The docstring of OptimizersContainer says that
  parts may have several optimizers if groups use different ones.
Requirement: TRN-22, in cases of LIF-10: no others draw a stage that is all frozen beside an optimizer (near TRN-14).
Schedules: all; the more stages, the more often.
Known: https://github.com/pytorch/torchtitan/pull/4102 names the condition, and lifts it for DistMuon;
  https://github.com/pytorch/torchtitan/pull/4259 would check patterns on the whole model.
Possible fix: check patterns before the model is split, and leave groups out that are empty in a part.
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
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.distributed.pipeline_parallel import pipeline_llm

M, LAYERS, VOCABULARY, WIDTH = 4, 2, 11, 6


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): nn.Linear(WIDTH, WIDTH) for i in range(LAYERS)})
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)


def parts_of(model, schedule):
    parallelism = ParallelismConfig(pipeline_parallel_degree=2, pipeline_parallel_schedule=schedule)
    dims = ParallelDims.from_config(parallelism, world_size=2)
    dims.build_mesh()
    _, parts, _, _ = pipeline_llm(
        model,
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
    return parts


def built(parts, patterns):
    groups = [
        ParamGroupConfig(pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={"lr": lr})
        for pattern, lr in patterns
    ]
    config = OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
    try:
        found = OptimizersContainer(config, model_parts=parts)
    except ValueError as error:
        return f"ValueError: {error}"
    return f"{sum(len(group['params']) for one in found for group in one.param_groups)} parameters"


def worker(rank, folder):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    parallel_dims.device_type = "cpu"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    embeddings = [("tok_embeddings|lm_head", 0.01), (".*", 0.001)]
    for title, frozen, patterns in (
        ("one group", False, [(".*", 0.001)]),
        ("embedding and head as a group of their own", False, embeddings),
        ("one group, embedding frozen", True, [(".*", 0.001)]),
    ):
        if rank == 0:
            print(f"{title}:")
        for schedule in (None, "1F1B", "Interleaved1F1B"):
            model = Decoder()
            model.tok_embeddings.requires_grad_(not frozen)
            result = built([model] if schedule is None else parts_of(model, schedule), patterns)
            found = [None, None]
            dist.all_gather_object(found, result)
            if rank == 0 and schedule is None:
                print(f"  the model in one piece: {result}")
            elif rank == 0:
                for one, what in enumerate(found):
                    print(f"  {schedule}, rank {one}: {what}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=2)
