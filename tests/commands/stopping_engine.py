"""The reference with a breakpoint, and with an error: for tests of ``replay --pdb``."""

from __future__ import annotations

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Mode, StepResult


class Stopping(ReferencePipeline):
    """Has a breakpoint before each step."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run a step."""
        due = batch.num_microbatches
        breakpoint()
        due += 1
        return super().run(mode, batch)


class Stops(ReferenceAdapter):
    """Builds pipelines with breakpoints."""

    name = "stops"
    pipeline = Stopping


class Raising(ReferencePipeline):
    """Raises on rank 1."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run a step."""
        due = 40 + batch.num_microbatches
        if self.position == 1:
            raise ValueError(f"not {due}")
        return super().run(mode, batch)


class Raises(ReferenceAdapter):
    """Builds pipelines that raise."""

    name = "raises"
    pipeline = Raising
