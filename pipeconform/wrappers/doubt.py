"""How far the oracle's values may be from those of another right evaluation, if that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.observe.array import Array

if TYPE_CHECKING:
    from pipeconform.bounds.running_error import RunningError

__all__ = ["Doubt"]


class Doubt:
    """Reads values and, under running error analysis, their bounds; without it, there are no bounds."""

    def __init__(self, analysis: RunningError | None = None, *, device_type: str = "cpu") -> None:
        self.analysis = analysis
        self._rounds_once = device_type == "cpu"

    @classmethod
    def of(cls, case: WrapperCase, *, device_type: str = "cpu") -> Doubt:
        """An analysis for a case whose ranks compute on such a device.

        Of a module with a very large parameter, it has no samples, which need memory.
        """
        from pipeconform.bounds.running_error import RunningError  # most questions do not need it

        analysis = RunningError(samples=0) if case.module == "single" else RunningError()
        return cls(analysis, device_type=device_type)

    def aside(self) -> AbstractContextManager[object]:
        """A region in which values are made or read that are part of no evaluation: they count as exact."""
        return nullcontext() if self.analysis is None else self.analysis.aside()

    def module(self) -> AbstractContextManager[object]:
        """A region in which modules compute; the CPU's kernels round 16-bit results once.

        Others may not: torch's backward of ``tanh`` on CUDA rounds after each of its three operations
        (``tanh_backward_kernel_cuda`` in aten/src/ATen/native/cuda/BinaryMiscBackwardOpsKernels.cu).
        """
        if self.analysis is None or not self._rounds_once:
            return nullcontext()
        return self.analysis.rounding_once()

    def array(self, tensor: Tensor) -> Array:
        """A tensor as plain data."""
        with self.aside():
            return Array.of(tensor)

    def arrays(self, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
        """Tensors by name as plain data."""
        return {name: self.array(tensor) for name, tensor in tensors.items()}

    def bounds(self, tensors: Mapping[str, Tensor | None]) -> dict[str, Array]:
        """The bound of each element by name (float64, in the tensor's shape); empty without an analysis."""
        if self.analysis is None:
            return {}
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return dict(zip(present, self.all_bounds(present.values()), strict=True))

    def all_bounds(self, tensors: Iterable[Tensor]) -> tuple[Array, ...]:
        """The bound of each element (float64, in the tensor's shape); empty without an analysis."""
        if self.analysis is None:
            return ()
        return tuple(self.array(self.analysis.bound(tensor)) for tensor in tensors)
