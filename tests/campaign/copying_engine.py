"""An engine that is right and copies each microbatch out of its batch before it uses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline
from pipeconform.reference_impl.runtime import Work
from torch import Tensor

from pipeconform.adapter import Batch, Mode


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


class _CopyingPipeline(ReferencePipeline):
    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return replace(work, inputs=[tuple(map(_copied, row)) for row in work.inputs])


class Copies(ReferenceAdapter):
    """Kernels may round otherwise where memory is aligned otherwise: as right as the reference."""

    pipeline = _CopyingPipeline
