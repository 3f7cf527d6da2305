"""Adam cannot go on from a distributed checkpoint if the first rank trains nothing: its step count was not saved.

What: the stage of the first rank is frozen, as an embedding or an encoder is in fine-tuning. dist_checkpointing.save
  writes all that the other ranks' Adam has but its step count, and load_state_dict raises KeyError: 'step' there, on
  what the same engine has just saved. If the last stage is frozen instead, or none, the resumed training is right, and
  so it is from optimizer.state_dict(), which Megatron-LM saves with `--ckpt-format torch`.
Where: megatron-core 0.16.1, core/optimizer/optimizer.py, sharded_state_dict of FP32Optimizer (and in the same words of
  Float16OptimizerWithFloat16Params): the step, which all parameters share, goes as `common_step` into what all ranks
  have in common, if the rank has a state. core/dist_checkpointing/strategies/common.py writes of this what rank 0 has.
  A rank that trains nothing has an optimizer over an empty group (core/optimizer/__init__.py, _get_param_groups), and
  thus no state. That ranks differ is logged as a warning when the checkpoint is written.
Why it is one: core/optimizer/__init__.py provides for such ranks ("when freezing sub-models we may have no trainable
  parameters on a rank"), and makes their groups those of the others for distributed checkpoints.
Requirement: LIF-10.
Schedules: all; the pipeline does not matter.
Known: no public thread found; near Megatron-LM#4790 and #4801, about what only some ranks have (MimoOptimizer).
Possible fix: save the step as a ShardedObject, or take it from any rank that has one.

The engine calls the CUDA runtime for devices and a synchronisation; here these mean the CPU. The Adam is torch's, which
the engine takes if there is neither Transformer Engine nor Apex, whose Adam counts steps in its groups (not run).
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 2
GRADIENTS = (1.0, 2.0, 4.0)  # of the steps, of which the first two come before the interruption
SAVED, MADE_WITH = 1.0, 5.0  # the weights of the first model, and of the one that is to take over


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name):
        return getattr(torch, name)

    def tensor(self, data, device=None, **options):
        return torch.tensor(data, device="cpu" if device == "cuda" else device, **options)

    def zeros(self, *size, device=None, **options):
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


class Training:
    """A stage and its optimizer, as Megatron-LM makes them."""

    def __init__(self, frozen, weight):
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer import TransformerConfig

        self.stage = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.stage.weight, weight)
        self.stage.requires_grad_(dist.get_rank() != frozen)
        config = TransformerConfig(num_layers=WORLD, num_attention_heads=1, hidden_size=1)
        wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), self.stage)
        options = OptimizerConfig(optimizer="adam", lr=0.125, weight_decay=0.0, clip_grad=0.0)
        self.optimizer = get_megatron_optimizer(options, [wrapped])

    def step(self, gradient):
        if self.stage.weight.requires_grad:
            self.stage.weight.main_grad.fill_(gradient)
        self.optimizer.step()
        return self

    def sharded(self, **options):
        from megatron.core.transformer.utils import sharded_state_dict_default

        found = {"model": sharded_state_dict_default(self.stage, f"stages.{dist.get_rank()}.")}
        return {**found, "optimizer": self.optimizer.sharded_state_dict(found, **options)}

    def load(self, found):
        self.stage.load_state_dict({name.split(".")[-1]: value for name, value in found["model"].items()})
        self.optimizer.load_state_dict(found["optimizer"])


def trained(frozen):
    training = Training(frozen, SAVED)
    for gradient in GRADIENTS[:-1]:
        training.step(gradient)
    return training


def next_weight(training):
    return f"{training.step(GRADIENTS[-1]).stage.weight.item():.4f}"


def after_loading(training, found):
    """The weight after one more step, in which all ranks take part, or what loading raised on some."""
    raised = ""
    try:
        training.load(found)
    except KeyError as error:
        raised = f"load_state_dict raises KeyError: {error}"
    everywhere = [""] * WORLD
    dist.all_gather_object(everywhere, raised)
    if any(everywhere):
        return raised or "loaded, but the other rank has not"
    return next_weight(training)


def resumed(frozen, folder):
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        Path(folder).mkdir()
    dist.barrier()
    dist_checkpointing.save(trained(frozen).sharded(), folder)
    training = Training(frozen, MADE_WITH)
    return after_loading(training, dist_checkpointing.load(training.sharded(is_loading=True), folder))


def resumed_as_it_is(frozen, folder):
    path = f"{folder}-{dist.get_rank()}.pt"
    training = trained(frozen)
    torch.save({"model": training.stage.state_dict(), "optimizer": training.optimizer.state_dict()}, path)
    training = Training(frozen, MADE_WITH)
    return after_loading(training, torch.load(path, weights_only=False))


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
    from megatron.core import parallel_state, utils
    from megatron.core.dist_checkpointing.strategies import filesystem_async, state_dict_saver
    from megatron.core.distributed import param_and_grad_buffer
    from megatron.core.optimizer import clip_grads, optimizer

    for module in (utils, filesystem_async, state_dict_saver, param_and_grad_buffer, clip_grads, optimizer):
        module.torch = TorchWithoutCuda("torch")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=WORLD)
    lines = []
    for frozen, stage in ((None, "nothing"), (1, "the last stage"), (0, "the first stage")):
        right = next_weight(trained(frozen))
        for words, found in (
            ("distributed checkpoint", resumed(frozen, f"{folder}/{frozen}")),
            ("optimizer.state_dict()", resumed_as_it_is(frozen, f"{folder}/{frozen}-2")),
        ):
            lines.append(f"rank {rank}, frozen {stage}, {words}: weight expected {right}, actual {found}\n")
    Path(folder, f"{rank}.txt").write_text("".join(lines))
    for child in mp.active_children():  # a writer of checkpoints, which would outlive this rank
        child.kill()
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
