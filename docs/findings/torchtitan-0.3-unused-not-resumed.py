"""A checkpoint of a training in which a parameter has had no gradient yet cannot be loaded.

What: `CheckpointManager.load` raises RuntimeError about a missing key of the optimizer. The parameter may be one that
  training does not use at all, or one that the first steps did not use: a branch for images, while batches had none.
Where: torchtitan 0.3.0, torchtitan/components/optimizer/utils.py, init_optim_state (lines 24 to 66).
Why: what is read is what the new optimizer has, after a step with gradients of zero for all its parameters. What is
  written is what the trained one has: if it has any state, nothing is added for parameters that have none.
Why it is one: torchtitan's docs/checkpoint.md saves full checkpoints "so that training can be resumed", and leaves out
  no parameter that is trained.
Requirement: LIF-10.
Schedules: all, and training without a pipeline (run here).
Known: torchtitan#4474, merged in September 2026, after 0.3.0, which mends it; torch's own functions have it too
  (pytorch#192202).
Possible fix: when saving, add the state of each parameter that has none; or read what the checkpoint has.
"""

import contextlib
import logging
import os
import tempfile
import warnings

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.images = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, with_images):
        return self.words(x) + (self.images(x) if with_images else 0.0)


def made(folder, seed):
    torch.manual_seed(seed)
    model = Branches()
    group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.1})
    config = OptimizersContainer.Config(param_groups=[group], implementation="for-loop")
    optimizers = OptimizersContainer(config, model_parts=[model])
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, folder=folder, interval=1, keep_latest_k=0),
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=None,
        states={},
        sd_adapter=None,
    )
    return model, optimizers, manager


def trained(model, optimizers, with_images):
    x = torch.arange(6.0).reshape(2, 3)
    model(x, with_images).square().sum().backward()
    optimizers.step()
    optimizers.zero_grad()


def resumed(with_images):
    """What `load` does in a new training, and what the next update then makes of the weights."""
    with tempfile.TemporaryDirectory() as folder:
        model, optimizers, manager = made(folder, seed=1)
        for _ in range(3):
            trained(model, optimizers, with_images)
        manager.save(3)
        other, others, reader = made(folder, seed=2)
        try:
            reader.load()
        except CheckpointException as error:
            (reason, _), *_ = error.failures.values()  # one for each rank
            return f"load raises {type(reason).__name__}: {reason}"
        for one, optimizer in ((model, optimizers), (other, others)):
            trained(one, optimizer, with_images)
        same = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
        return f"the next update is {'right' if same else 'wrong'}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stderr(None):
        print("every parameter is used:", resumed(with_images=True))
        print("one branch is not used:", resumed(with_images=False))
