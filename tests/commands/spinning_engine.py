"""An engine that never ends and never sleeps, as a rank that polls a device."""

from __future__ import annotations

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Mode, StepResult


class _Spinning(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        while True:
            pass


class Spinning(ReferenceAdapter):
    """It computes without end."""

    pipeline = _Spinning
