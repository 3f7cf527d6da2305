"""Where the kernels of a model in 16 bits may count as rounding every result once."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeconform.case import blocks
from pipeconform.case.case import Case, Stage

if TYPE_CHECKING:
    from pipeconform.bounds.running_error import RunningError

__all__ = ["Kernels", "round_once"]

_PLAIN = (
    blocks.Linear,
    blocks.Mlp,
    blocks.Norm,
    blocks.Attention,
    blocks.Embedding,
    blocks.Head,
    blocks.Overflowing,
)
"""Blocks whose parameters are used once, each of whose operations is one kernel if its input lies in one piece."""
_NARROW = ("bfloat16", "float16")


def round_once(case: Case, *, device_type: str) -> bool:
    """Whether every right evaluation of `case` in 16 bits uses the kernels that the oracle uses.

    Only then may a result of the oracle's kernel that is rounded once be held against others. Otherwise, every
    operation in 16 bits may round as often as it adds. Not so:

    - on accelerators, where one function has several kernels, some of which round more than once;
    - behind a compiler or a front end, which may join and take apart operations;
    - where what passes through stages, or a parameter that is used twice, adds gradients up in an order of its own;
    - for sequences, if a stage begins with anything but a map without a bias. Engines hand tensors over as they like,
      and `linear` of three dimensions that do not lie in one piece is a product and a sum, which are rounded twice.
    """
    model = case.model
    more = model.passages or model.kwargs or model.tied or model.readout or model.merged
    return (
        _computed_in(case) in _NARROW
        and device_type == "cpu"
        and not more
        and "stream" not in model.carried
        and model.split is None
        and model.output == "tensor"
        and case.world.tensor is None
        and all(isinstance(block, _PLAIN) for block in model.blocks())
        and (not model.sequence or all(map(_is_in_one_piece, model.stages)))
    )


def _computed_in(case: Case) -> str:
    return "bfloat16" if case.world.is_mixed else case.autocast or case.model.dtype


def _is_in_one_piece(stage: Stage) -> bool:
    first = next((block for block in stage.blocks if not isinstance(block, blocks.Embedding)), None)
    return isinstance(first, blocks.Linear) and not first.bias


class Kernels:
    """The regions of a training step in which kernels round once; without an analysis, or elsewhere, there are none.

    Outside are sums over more than two microbatches, and over replicas and steps, as engines add in any order. So is
    the loss function, unless the factors by which engines scale a loss, its gradient or all gradients are powers of
    two, which round nothing.
    """

    def __init__(self, analysis: RunningError | None, case: Case, *, device: str) -> None:
        once = analysis is not None and round_once(case, device_type=torch.device(device).type)
        self._analysis = analysis if once else None
        # scaled numbers in float16 may be subnormal
        self._has_range = _computed_in(case) == "bfloat16"
        self._is_alone = case.world.num_replicas == 1
        self._exact_scale = self._two_terms = False

    @property
    def are_known(self) -> bool:
        """Whether there are such regions."""
        return self._analysis is not None

    def begin(self, *, num_microbatches: int, divisor: int, accumulates: bool) -> None:
        """A step begins: what engines divide losses or gradients by (0: no integer), and whether gradients are kept."""
        self._exact_scale = self._has_range and divisor.bit_count() == 1
        self._two_terms = self._is_alone and num_microbatches <= 2 and not accumulates

    def forward(self) -> AbstractContextManager[object]:
        """A region in which a stage computes."""
        return self._region(inside=True)

    def loss(self) -> AbstractContextManager[object]:
        """A region in which the loss function computes."""
        return self._region(inside=self._exact_scale)

    def sum(self) -> AbstractContextManager[object]:
        """A region in which the gradients of a microbatch are added to those of earlier ones."""
        return self._region(inside=self._two_terms)

    def backward(self, loss: Tensor, *, output: Any) -> None:
        """Differentiate the loss; what comes behind the gradient of the `output` is computed by stages."""
        with ExitStack() as region:
            region.enter_context(self.loss())
            if self._analysis is not None and isinstance(output, Tensor) and output.requires_grad:
                handle = output.register_hook(lambda _: region.enter_context(self.forward()))  # type: ignore[no-untyped-call]
                region.callback(handle.remove)
            loss.backward()  # type: ignore[no-untyped-call]

    def _region(self, *, inside: bool) -> AbstractContextManager[object]:
        return self._analysis.rounding_once() if self._analysis is not None and inside else nullcontext()
