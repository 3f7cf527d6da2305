"""Pooled receive buffers stay for every later pipeline of the process, and a GPipe's gradients are then wrong.

What: a pipeline is built under 1F1B with pp_recv_buffer_pool=True; after it, one under GPipe, without that option or
  with it. The GPipe one says that the option is ignored, or nothing, and trains with wrong weight gradients and the
  right loss. Under 1F1B itself, outputs are wrong of a last stage that hands on its input as it is.
Where: nemo-automodel 0.7.0, components/distributed/pipelining/recv_buffer_pool.py, install_recv_buffer_pool, which
  replaces methods of torch's PipelineStage; autopipeline.py, AutoPipeline.build, which decides for one pipeline.
Why: the methods are replaced for the process, not for a pipeline, and never put back. They share a few buffers
  among all microbatches, of which GPipe keeps more: its backward takes the input of a later microbatch for that of an
  earlier one (the module's own text says that GPipe "would silently corrupt gradients"). The merged output is put
  together at the end of the step, when a buffer has been received into again.
Requirement: none; near LIF-1 (pipelines of one process do not disturb each other) and FWD-1.
Schedules: 1F1B with the pool; GPipe after it.
Known: https://github.com/NVIDIA-NeMo/Automodel/pull/3780 (merged) added the pool.
Possible fix: replace the methods of the stages of one pipeline, as _preserve_grads_across_stage_reinit does; keep
  the buffers of a stage whose output shares their memory.
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

M = 6  # microbatches
POOLED = {"pp_recv_buffer_pool": True}


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


def linear():
    return nn.Linear(3, 3, dtype=torch.float64)


def differences(mesh, last, schedule, **options):
    """How far outputs and this rank's weight gradient are from those of the model in one piece."""
    torch.manual_seed(0)
    layers = [linear(), last()]
    x, y = torch.randn(2, 2 * M, 3, dtype=torch.float64)
    built = AutoPipeline(
        mesh,
        pp_schedule=schedule,
        pp_microbatch_size=2,
        pp_batch_size=2 * M,
        module_fqns_per_model_part=[["model.layers.0"], ["model.layers.1"]],
        device=torch.device("cpu"),
        scale_grads_in_schedule=True,
        **options,
    ).build(Model(layers), loss_fn=nn.functional.mse_loss)
    on_last = built.info.has_last_stage
    losses = [] if on_last else None
    output = built.step(x, target=y if on_last else None, losses=losses)

    right = layers[1](layers[0](x))
    nn.functional.mse_loss(right, y).backward()
    own = layers[1 if on_last else 0]
    (part,) = built.parts
    pairs = zip(part.parameters(), own.parameters(), strict=True)
    gradient = max((float((mine.grad - its.grad).abs().max()) for mine, its in pairs), default=0.0)
    said = {"gradients": gradient}
    if on_last:
        said |= {
            "outputs": float((output - right).abs().max()),
            "loss": float((torch.stack(losses).mean() - nn.functional.mse_loss(right, y)).abs()),
        }
    return said


def worker(rank, folder):
    warnings.simplefilter("ignore")
    logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    for words, last, schedule, options in (
        ("gpipe", linear, "gpipe", {}),
        ("1f1b, last stage hands on its input", nn.Identity, "1f1b", {}),
        ("1f1b with the pool", linear, "1f1b", POOLED),
        ("1f1b with the pool, last stage hands on its input", nn.Identity, "1f1b", POOLED),
        ("gpipe after it", linear, "gpipe", {}),
        ("gpipe after it, pool asked for and said to be ignored", linear, "gpipe", POOLED),
    ):
        found = [None, None]
        dist.all_gather_object(found, differences(mesh, last, schedule, **options))
        if rank == 0:
            print(words)
            for one, said in enumerate(found):
                for what, value in said.items():
                    print(f"  rank {one}, {what}: {'right' if value < 1e-9 else f'wrong by {value:.2f}'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=2)
