"""An engine that keeps the exception of a step in its class, and raises it in the steps of later pipelines."""

from __future__ import annotations

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline


class _KeepingPipeline(ReferencePipeline):
    error: Exception | None = None

    def run(self, mode, batch):
        if _KeepingPipeline.error is not None:
            raise _KeepingPipeline.error
        try:
            return super().run(mode, batch)
        except Exception as error:
            _KeepingPipeline.error = error
            raise


class Keeps(ReferenceAdapter):
    pipeline = _KeepingPipeline
