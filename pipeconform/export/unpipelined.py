"""The same model without a pipeline, once for every replica: what the values of an exported program should be.

A part of `program`, which says what it may import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.export.comparison import copied, fired, flat, merged_by, of


class Unpipelined:
    """One replica: the whole model on data of its own."""

    def __init__(self, case: Any, replica: int, capabilities: Any) -> None:
        from pipeconform.case import data
        from pipeconform.case.modules import build_stage, tie
        from pipeconform.case.whole import build_whole

        self.case, self.replica, self.capabilities = case, replica, capabilities
        self.split = case.model.split is not None
        self.stages: list[nn.Module] = [build_stage(case, s) for s in range(case.num_stages)]
        tie(case, self.stages)
        if self.split:
            self.stages = [build_whole(case)]
        self.live = dict(enumerate(self.stages))
        # a parameter that two stages hold is one
        self.parameters = list(dict.fromkeys(p for stage in self.stages for p in stage.parameters()))
        self.optimizer = optimizer_of(case, [p for p in self.parameters if p.requires_grad])
        self.loss = data.loss_of(case)
        self.right: dict[str, Any] = {}

    def step(self, index: int, step: Any) -> None:
        """One step of the program, but for what replicas do together."""
        from pipeconform.adapter import module_state
        from pipeconform.case import data
        from pipeconform.case.case import Eval, Load, Train, Zero

        if isinstance(step, Train | Eval):
            self.run(index, step)
        elif isinstance(step, Zero):
            for stage in self.stages:
                stage.zero_grad(set_to_none=step.set_to_none)
        elif isinstance(step, Load):
            with torch.no_grad():
                for s, values in data.loaded_state(self.case, index).items():
                    for name, value in module_state({s: self.live[s]})[s].items():
                        value.copy_(values[name])
        elif self.optimizer is not None:
            self.optimizer.step()

    def run(self, index: int, step: Any) -> None:
        """Forward and, in training, backward, microbatch by microbatch."""
        from pipeconform.case import data
        from pipeconform.case.case import Train
        from pipeconform.case.graph_layers import deferred_weights
        from pipeconform.case.whole import whole_kwargs

        at, training = f"step {index}", isinstance(step, Train)
        batch = data.make_batch(self.case, index, replica=self.replica)
        outputs, losses = [], []
        for stage in self.stages:
            stage.train(training)
        with data.autocast_of(step, device="cpu"), torch.set_grad_enabled(training):
            for micro in batch.microbatches:
                values: Any = micro.args
                for s, stage in self.live.items():
                    args = values if isinstance(values, tuple | list) else (values,)
                    kwargs = whole_kwargs(micro.kwargs) if self.split else micro.kwargs.get(s, {})
                    values = stage(*args, **kwargs)
                outputs.append(values)
                if not training:
                    continue
                one = self.loss.function(values, micro.target, **batch.loss_kwargs)
                losses.append(one)
                if one.requires_grad:
                    torch.autograd.backward(one * weight(self.loss, self.capabilities, batch, micro))
                    for stage in self.stages:
                        builder = deferred_weights(stage)
                        if builder is not None:
                            builder()()
        for stage in self.stages:
            stage.train()
        self.right |= flat(f"{at}, output", merged_by(self.case, outputs, batch.batch_dim))
        self.right |= flat(f"{at}, losses", losses if training else None)
        if training:
            gradients = [arg.grad if isinstance(arg, Tensor) else None for arg in batch.args]
            self.right |= flat(f"{at}, input gradients", tuple(gradients))

    def show(self, index: int) -> None:
        """Write down what there is after a step."""
        from pipeconform.adapter import module_state

        at = f"step {index}"
        for s, stage in self.live.items():
            here = f"{at}, {of(self.case, s)}"
            self.right |= {f"{here}gradient of {n}": copied(p.grad) for n, p in stage.named_parameters()}
            self.right |= {f"{here}{n}": copied(v) for n, v in module_state({s: stage})[s].items()}
        self.right |= fired(self.case, index, self.live)


def unpipelined(case: Any, capabilities: Any) -> list[dict[str, Any]]:
    """What is right, per replica, by the names that `program.pipelined` uses."""
    from pipeconform.case.case import Train

    replicas = [Unpipelined(case, d, capabilities) for d in range(case.world.num_replicas)]
    for index, step in enumerate(case.program):
        for one in replicas:
            one.step(index, step)
        if isinstance(step, Train):
            average(replicas)
        for one in replicas:
            one.show(index)
    return [one.right for one in replicas]


def average(replicas: Sequence[Unpipelined]) -> None:
    """Give every replica the mean of all gradients; None where no replica has one."""
    if len(replicas) == 1:
        return
    for column in zip(*(one.parameters for one in replicas), strict=True):
        gradients = [p.grad for p in column if p.grad is not None]
        if not gradients:
            continue
        mean = torch.stack(gradients).sum(0) / len(replicas)
        for p in column:
            p.grad = mean.clone()


def weight(loss: Any, capabilities: Any, batch: Any, micro: Any) -> float:
    """What a microbatch's loss counts in the sum that is differentiated."""
    if loss.reduction != "mean":
        return 1.0
    if capabilities.loss_over == "batch":
        return float(micro.target.shape[batch.batch_dim] / batch.target.shape[batch.batch_dim])
    return 1.0 / float(batch.num_microbatches)


def optimizer_of(case: Any, parameters: list[Any]) -> torch.optim.Optimizer | None:
    """The case's optimizer."""
    from pipeconform.case.case import Adam, Sgd

    if parameters and isinstance(case.optimizer, Sgd):
        return torch.optim.SGD(parameters, lr=case.optimizer.lr, momentum=case.optimizer.momentum)
    if parameters and isinstance(case.optimizer, Adam):
        return torch.optim.Adam(parameters, lr=case.optimizer.lr)
    return None
