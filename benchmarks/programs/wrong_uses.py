"""Built-in adapters of engines that violate nothing at smoke, or only by chance, each used wrongly, for a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pipeconform.adapter import Plan
from pipeconform.adapters.dualpipe import DualPipe, DualPipeDefault
from pipeconform.adapters.galvatron import Galvatron
from pipeconform.adapters.megatron import MegatronLM
from pipeconform.adapters.torch_wrappers import TorchFullyShard
from pipeconform.adapters.torchgpipe import TorchGPipe
from pipeconform.wrapper import WrapOptions

__all__ = [
    "AveragesTwice",
    "AveragesTwiceInDualPipe",
    "AveragesTwiceInDualPipeDefault",
    "AveragesTwiceInGalvatron",
    "AveragesTwiceInMegatronLM",
    "HalvesOutputs",
]


class _Divided:
    """In front of an adapter: its pipelines are built with a loss divided by m."""

    def build(self, plan: Plan) -> Any:
        """Build the pipeline with a loss divided by m."""
        function, m = plan.loss.function, plan.num_microbatches
        loss = replace(plan.loss, function=lambda *args, **kwargs: function(*args, **kwargs) / m)
        return super().build(replace(plan, loss=loss))  # type: ignore[misc]


class AveragesTwice(_Divided, TorchGPipe):
    """torchgpipe, with a loss that is averaged over the microbatches after the merged output has averaged it."""


class AveragesTwiceInMegatronLM(_Divided, MegatronLM):
    """megatron-core as Megatron-LM configures it, with a loss that is divided by m before the engine divides it."""


class AveragesTwiceInDualPipe(_Divided, DualPipe):
    """DualPipe, whose losses are summed, with a loss that is divided by m."""


class AveragesTwiceInDualPipeDefault(_Divided, DualPipeDefault):
    """The same where outputs are not asked for."""


class AveragesTwiceInGalvatron(_Divided, Galvatron):
    """Hetu-Galvatron, with a loss that is divided by m before the engine divides it."""


class HalvesOutputs(TorchFullyShard):
    """fully_shard around a module that returns half of what it computes."""

    def wrap(self, module: nn.Module, options: WrapOptions) -> Any:
        """Wrap a module that halves its output."""
        module.register_forward_hook(_half)
        return super().wrap(module, options)


def _half(module: nn.Module, args: object, output: object) -> object:
    return output / 2 if isinstance(output, Tensor) else output
