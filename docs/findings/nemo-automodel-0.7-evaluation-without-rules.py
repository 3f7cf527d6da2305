"""An evaluation splits keyword arguments without the rules of the model; the recipe for language models trains so, too.

What: a model says by get_pipeline_kwargs_chunk_dims in which dimension an argument has its batch, such as rotary
  positions [axes, batch, sequence]. AutoPipeline.step() follows it. An evaluation, for which AutoPipeline has no
  method, is `info.schedule.eval()` in the recipes: it cuts the argument along its first dimension. Where as many
  microbatches as axes fit, each is given one axis of all samples instead of all axes of its samples, without an error
  if shapes allow it, and the validation loss is wrong; otherwise a rank raises and the others wait.
Where: NeMo AutoModel 0.7.0, components/distributed/pipelining/autopipeline.py, step: only there the schedule has the
  rules, for one call. recipes/llm/train_ft.py, lines 1312 to 1320, calls the schedule's step and eval itself, and
  recipes/llm/kd.py likewise.
Why it is one: _get_schedule_kwargs_chunk_spec's docstring says that model-owned layouts put the batch on another axis
  and that the model can declare it; it does not say that this holds in training steps alone.
Requirement: FWD-22.
Schedules: all that can evaluate.
Known: https://github.com/NVIDIA-NeMo/Automodel/pull/3759 (of August 2026).
Possible fix: give the schedule the rules for evaluations, too, in a method that recipes call.
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
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

M = 2  # microbatches, of one sample each


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

    def get_pipeline_kwargs_chunk_dims(self, kwargs):
        return {"positions": 1}

    def forward(self, x, positions):
        """`positions`: [axes, batch, width]; each sample's are added up over the axes."""
        for layer in self.model.layers.values():
            x = layer(x)
        return x + positions.sum(0)


def worker(rank, folder):
    warnings.simplefilter("ignore")
    logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3) for _ in range(2)]
    x, y = torch.randn(2, M, 3)
    positions = torch.randn(M, M, 3)  # as many axes as samples
    built = AutoPipeline(
        init_device_mesh("cpu", (2,), mesh_dim_names=("pp",)),
        pp_schedule="1f1b",
        pp_microbatch_size=1,
        pp_batch_size=M,
        module_fqns_per_model_part=[["model.layers.0"], ["model.layers.1"]],
        device=torch.device("cpu"),
    ).build(Model(layers), loss_fn=nn.functional.mse_loss)
    on_last, schedule = built.info.has_last_stage, built.info.schedule
    target = y if on_last else None
    inputs = (x,) if built.info.has_first_stage else ()

    def of_recipe(losses):
        with torch.no_grad():
            schedule.eval(*inputs, target=target, losses=losses, positions=positions)

    model = Model(layers)
    model.model.layers = nn.ModuleDict({str(k): layer for k, layer in enumerate(layers)})
    hidden = layers[0](x) + positions.sum(0)  # each of the two stages adds positions
    right = nn.functional.mse_loss(layers[1](hidden) + positions.sum(0), y).item()
    for words, run in (
        (
            "AutoPipeline.step()",
            lambda losses: built.step(x, target=target, losses=losses, positions=positions),
        ),
        ("info.schedule.eval(), as in the recipes", of_recipe),
    ):
        losses = [] if on_last else None
        run(losses)
        if on_last:
            found = torch.stack(losses).mean().item()
            print(f"{words}: loss expected {right:.4f}, actual {found:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=2)
