"""Whether an engine that says that it computes stages again does."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.case import Train
from pipeconform.judge.evidence import Evidence, Finding, shown_step

__all__ = ["stages_are_computed_again"]


def stages_are_computed_again(evidence: Evidence) -> Iterator[Finding]:
    """In every training step with several microbatches, each stage is computed more often than there are microbatches.

    How many are computed again is the engine's choice: GPipe's implementations leave the last one out. Of a single
    microbatch nothing is asked.
    """
    for expected in evidence.runs(Train):
        num = len(expected.outputs)
        for s in range(evidence.case.num_stages if num > 1 else 0):
            owners = tuple(evidence.owners(s))
            times = sum(shown_step(one, expected.step).begun.get(s, 0) for one in owners)
            evidence.compared()
            if times <= num:
                text = (
                    f"stage {s} was computed {times} times for {num} microbatches: its activations were kept"
                )
                yield Finding(
                    kind="not computed again",
                    message=text,
                    step=expected.step,
                    rank=owners[0].rank,
                    stage=s,
                )
