"""Under ZBVZeroBubble the training recipe reports a loss of 0, for training and for validation.

What: the recipe takes the losses of a step from the rank with the last stage, and broadcasts them from the last
  rank of the pipeline. Under ZBVZeroBubble the last stage is on the first rank; the loss that is reported, and
  written to logs, is the 0 that the last rank began with.
Where: nemo-automodel 0.7.0, recipes/llm/train_ft.py, _broadcast_from_last_pp_stage (line 1420), called for the loss
  of a training step, and for the loss and the number of tokens of a validation. The stages of ZBVZeroBubble are
  placed in components/distributed/pipelining/functional.py, split_model_into_stages.
Why: "last stage" is taken to be on rank p - 1.
Requirement: none (what a recipe reports is not the pipeline's return value).
Schedules: ZBVZeroBubble.
Known: no thread about this engine is known; the same in torchtitan: https://github.com/pytorch/torchtitan/pull/935
  (merged).
Possible fix: broadcast from the rank whose AutoPipeline has the last stage.
"""

import logging
import os
import tempfile
import warnings

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from nemo_automodel.components.distributed.pipelining import AutoPipeline
from nemo_automodel.recipes.llm.train_ft import TrainFinetuneRecipeForNextTokenPrediction as Recipe
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

M = 4  # microbatches


class Layers(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)


class Model(nn.Module):
    _pp_keep_self_forward = True  # the engine then leaves forward as it is
    config = None

    def __init__(self, layers):
        super().__init__()
        self.model = Layers(layers)

    def forward(self, x):
        for layer in self.model.layers.values():
            x = layer(x)
        return x


def losses_of(mesh, schedule, stages):
    """The loss of one step as the rank with the last stage has it, and as the recipe reports it here."""
    torch.manual_seed(0)
    x, y = torch.randn(2, M, 3, dtype=torch.float64)
    built = AutoPipeline(
        mesh,
        pp_schedule=schedule,
        pp_microbatch_size=1,
        pp_batch_size=M,
        module_fqns_per_model_part=[[f"model.layers.{s}"] for s in range(stages)],
        device=torch.device("cpu"),
    ).build(
        Model(nn.Linear(3, 3, dtype=torch.float64) for _ in range(stages)),
        loss_fn=nn.functional.mse_loss,
    )
    on_last = built.info.has_last_stage
    losses = [] if on_last else None
    built.step(x, target=y if on_last else None, losses=losses)
    # as the recipe's _forward_backward_step and _run_train_optim_step do
    own = torch.sum(torch.stack(losses)) if on_last else torch.tensor(0.0, dtype=torch.float64)
    recipe = Recipe.__new__(Recipe)
    recipe.device_mesh = mesh
    reported = recipe._broadcast_from_last_pp_stage(own.clone().detach())
    return (float(own) if on_last else None), float(reported)


def worker(rank, folder):
    warnings.simplefilter("ignore")
    logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    for schedule, stages in (("1F1B", 2), ("Interleaved1F1B", 4), ("ZBVZeroBubble", 4)):
        found = [None, None]
        dist.all_gather_object(found, losses_of(mesh, schedule, stages))
        if rank == 0:
            owner, (loss, _) = next((r, one) for r, one in enumerate(found) if one[0] is not None)
            print(f"{schedule}: rank {owner} has the last stage, and the loss {loss:.4f}")
            print(f"  the recipe reports {', '.join(f'{one[1]:.4f}' for one in found)} on ranks 0, 1")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=2)
