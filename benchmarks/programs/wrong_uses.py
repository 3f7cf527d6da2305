"""Built-in adapters of engines that violate nothing at smoke, each used wrongly, so that they have a program, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pipeconform.adapter import Plan
from pipeconform.adapters.torch_wrappers import TorchFullyShard
from pipeconform.adapters.torchgpipe import TorchGPipe
from pipeconform.wrapper import WrapOptions

__all__ = ["AveragesTwice", "HalvesOutputs"]


class AveragesTwice(TorchGPipe):
    """torchgpipe, with a loss that is averaged over the microbatches after the merged output has averaged it."""

    def build(self, plan: Plan) -> Any:
        """Build the pipeline with a loss divided by m."""
        function, m = plan.loss.function, plan.num_microbatches
        loss = replace(plan.loss, function=lambda *args, **kwargs: function(*args, **kwargs) / m)
        return super().build(replace(plan, loss=loss))


class HalvesOutputs(TorchFullyShard):
    """fully_shard around a module that returns half of what it computes."""

    def wrap(self, module: nn.Module, options: WrapOptions) -> Any:
        """Wrap a module that halves its output."""
        module.register_forward_hook(_half)
        return super().wrap(module, options)


def _half(module: nn.Module, args: object, output: object) -> object:
    return output / 2 if isinstance(output, Tensor) else output
