"""A pipeline in bfloat16 does not go on where it was saved: its checkpoint lacks the float32 copies, without a word.

What: with precision "bf16" the plugin for pipelines steps float32 copies of the parameters. Booster.save_model and
  save_optimizer do not save them; what is loaded makes copies of the parameters in bfloat16. What updates have added
  below their precision is lost: here sixteen updates move a copy from 1 to 0.998, and the parameter stays 1; after
  loading the copy is 1. The momentum is saved, and with "fp32" all is right.
Where: ColossalAI 0.5.0, colossalai/checkpoint_io/hybrid_parallel_checkpoint_io.py: _optimizer_sharder and
  save_unsharded_optimizer save optimizer.optim.state and the groups; load_sharded_model and load_unsharded_model end
  with update_master_params, which copies from the parameters (amp/naive_amp/mixed_precision_optimizer.py).
Why it is one: the documentation's page "Booster Checkpoint" gives save_optimizer and load_optimizer beside those for
  models, and leaves out no precision. The copies are what the optimizer steps.
Requirement: none (float32 copies are not claimed; near LIF-10).
Schedules: all; the pipeline does not matter.
Known: no public thread found; near ColossalAI#4711 (the copies are made again when a model is loaded).
Possible fix: save the copies beside the states of the parameters that they belong to.

By reading, "fp16" loses them, too, and the scale of the loss; the engine has no scaler for a CPU. The package imports
much that is not used here, for which empty modules stand in where it is not installed.
"""

import importlib.util
import os
import sys
import tempfile
import types
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 2
UPDATES, RATE = 16, 2.0**-13
NOT_USED = (
    *("peft", "peft.utils", "peft.utils.other", "peft.utils.save_and_load"),
    *("galore_torch", "bitsandbytes", "bitsandbytes.optim", "bitsandbytes.optim.optimizer"),
    *("safetensors", "safetensors.torch"),
)


class Empty(types.ModuleType):
    _TYPES = types.MappingProxyType({})

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_plugin():
    missing = [name for name in NOT_USED if importlib.util.find_spec(name.partition(".")[0]) is None]
    sys.modules.update((name, Empty(name)) for name in missing)
    from colossalai import accelerator
    from colossalai.booster.plugin import hybrid_parallel_plugin  # noqa: F401
    from colossalai.pipeline import p2p

    for name in missing:
        del sys.modules[name]
    accelerator.set_accelerator("cpu")
    p2p._check_for_nccl_hccl_backend = lambda group: (
        False
    )  # asks torch for HCCL by a name that it does not have


class Half:
    """Tells the plugin that each rank holds one half of the model."""

    def set_model(self, model):
        self.model = model

    def set_shard_config(self, config):
        self.stage = config.pipeline_stage_manager.stage

    def preprocess(self):
        return self.model

    def postprocess(self):
        return self.model

    def module_policy(self):
        return {}

    def get_shared_params(self):
        return []

    def get_held_layers(self):
        return [self.model[self.stage]]


class Training:
    """A model of two linear maps, as the booster makes it a pipeline; this rank's weight begins as 1."""

    def __init__(self, precision, weight):
        from colossalai.booster import Booster
        from colossalai.booster.plugin import HybridParallelPlugin

        model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(WORLD)))
        for parameter in model.parameters():
            nn.init.constant_(parameter, weight)
        plugin = HybridParallelPlugin(
            tp_size=1,
            pp_size=WORLD,
            precision=precision,
            num_microbatches=1,
            custom_policy=Half(),
        )
        self.booster = Booster(plugin=plugin)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.5)
        self.model, self.optimizer, *_ = self.booster.boost(model, optimizer)

    def step(self, gradient):
        """As after a backward."""
        (parameter,) = self.model.parameters()
        parameter.grad = torch.full_like(parameter, gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def shown(self):
        (parameter,) = self.model.parameters()
        (stepped,) = self.optimizer.param_groups[0]["params"]
        momentum = self.optimizer.optim.state[stepped]["momentum_buffer"]
        return {
            "parameter": parameter.item(),
            "float32 copy": stepped.item(),
            "momentum": momentum.item(),
        }


def told(precision, folder, *, sharded):
    first = Training(precision, 1.0)
    for _ in range(UPDATES):
        first.step(0.5)
    first.booster.save_model(first.model, f"{folder}-model", shard=sharded)
    first.booster.save_optimizer(first.optimizer, f"{folder}-optimizer", shard=sharded)
    dist.barrier()
    second = Training(precision, 5.0)
    second.booster.load_model(second.model, f"{folder}-model")
    second.booster.load_optimizer(second.optimizer, f"{folder}-optimizer")
    saved, loaded = first.shown(), second.shown()
    return "; ".join(f"{name} saved {saved[name]:.6f}, loaded {loaded[name]:.6f}" for name in saved)


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=100),
    )
    import_plugin()
    lines = []
    for precision in ("fp32", "bf16"):
        for sharded in (True, False):
            found = told(precision, f"{folder}/{precision}-{sharded}", sharded=sharded)
            lines.append(f"rank {rank}, {precision}, shard={sharded}: {found}\n")
    Path(folder, f"{rank}.txt").write_text("".join(lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
