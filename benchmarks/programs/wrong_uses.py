"""Built-in adapters of engines that violate nothing at smoke, or only by chance, each used wrongly, for a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pipeconform.adapter import Plan
from pipeconform.adapters.dualpipe import DualPipe, DualPipeDefault
from pipeconform.adapters.megatron import MegatronLM
from pipeconform.adapters.torch_wrappers import TorchFullyShard
from pipeconform.adapters.torchgpipe import TorchGPipe
from pipeconform.wrapper import WrapOptions

__all__ = [
    "AveragesTwice",
    "AveragesTwiceInDualPipe",
    "AveragesTwiceInDualPipeDefault",
    "AveragesTwiceInMegatronLM",
    "HalvesOutputs",
]


class AveragesTwice(TorchGPipe):
    """torchgpipe, with a loss that is averaged over the microbatches after the merged output has averaged it."""

    def build(self, plan: Plan) -> Any:
        """Build the pipeline with a loss divided by m."""
        return super().build(_divided(plan))


class AveragesTwiceInMegatronLM(MegatronLM):
    """megatron-core as Megatron-LM configures it, with a loss that is divided by m before the engine divides it."""

    def build(self, plan: Plan) -> Any:
        """Build the pipeline with a loss divided by m."""
        return super().build(_divided(plan))


class AveragesTwiceInDualPipe(DualPipe):
    """DualPipe, whose losses are summed, with a loss that is divided by m."""

    def build(self, plan: Plan) -> Any:
        """Build the pipeline with a loss divided by m."""
        return super().build(_divided(plan))


class AveragesTwiceInDualPipeDefault(DualPipeDefault):
    """The same where outputs are not asked for."""

    def build(self, plan: Plan) -> Any:
        """Build the pipeline with a loss divided by m."""
        return super().build(_divided(plan))


def _divided(plan: Plan) -> Plan:
    function, m = plan.loss.function, plan.num_microbatches
    return replace(
        plan, loss=replace(plan.loss, function=lambda *args, **kwargs: function(*args, **kwargs) / m)
    )


class HalvesOutputs(TorchFullyShard):
    """fully_shard around a module that returns half of what it computes."""

    def wrap(self, module: nn.Module, options: WrapOptions) -> Any:
        """Wrap a module that halves its output."""
        module.register_forward_hook(_half)
        return super().wrap(module, options)


def _half(module: nn.Module, args: object, output: object) -> object:
    return output / 2 if isinstance(output, Tensor) else output
