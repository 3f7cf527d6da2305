"""The reference, which says what it does: for tests of what is shown of ranks' output."""

from __future__ import annotations

import sys

from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Mode, StepResult


class Loud(ReferencePipeline):
    """Says how many microbatches a step has."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run a step."""
        print(f"a step of {batch.num_microbatches}")
        print("a warning", file=sys.stderr)
        return super().run(mode, batch)


class Adapter(ReferenceAdapter):
    """Builds loud pipelines."""

    name = "loud"
    pipeline = Loud
