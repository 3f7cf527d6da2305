"""How often the hooks of a model ran, in microbatches and in dry runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.timeline import executed

__all__ = ["Ran", "hooks_that_ran"]

_NEVER_IN_DRY_RUNS = "post_accumulate_grad"
"""A dry run computes no gradient of a parameter, so that its hook has no reason to run there."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How often one kind of hook ran in a stage, in one step."""

    kind: str
    step: int
    rank: int
    stage: int
    num_microbatches: int
    count: int
    expected: int
    """For the microbatches alone."""
    in_dry_runs: int
    """How much more often it may have run in dry runs, of the stage's module as a whole."""

    def finding(self, *, kind: str = "") -> Finding:
        """A finding about a wrong number."""
        more = "more" if self.count > self.expected else "less"
        return Finding(
            kind=kind or f"hooks ran {more} often",
            message=f"the {self.kind.replace('_', '-')} hook in stage {self.stage} ran {self.count} times for "
            f"{self.num_microbatches} microbatches; expected {self.expected}"
            + (f" (a dry run may add {self.in_dry_runs})" if self.in_dry_runs and not kind else ""),
            step=self.step,
            rank=self.rank,
            stage=self.stage,
        )


def hooks_that_ran(evidence: Evidence) -> Iterator[Ran]:
    """Every kind of hook of every stage, in every step; several owners of a stage share its microbatches.

    Raises:
        HarnessError: the timeline was not observed.
    """
    for expected in evidence.runs():
        m = len(evidence.sizes(expected.step))
        probes = Counter(stage for one in executed(evidence, expected.step) for stage in one.probes)
        for s, right in expected.hook_counts.items():
            owners = list(evidence.owners(s))
            counts = [shown_step(one, expected.step).hook_counts.get(s, {}) for one in owners]
            for kind, each in right.items():
                in_batch = kind == _NEVER_IN_DRY_RUNS and evidence.capabilities.loss_over == "batch"
                yield Ran(
                    kind=kind,
                    step=expected.step,
                    rank=owners[0].rank,
                    stage=s,
                    num_microbatches=m,
                    count=sum(found.get(kind, 0) for found in counts),
                    # a backward pass over the whole batch adds to each parameter once
                    expected=each // m if in_batch else each,
                    in_dry_runs=0 if kind == _NEVER_IN_DRY_RUNS else probes[s] * (each // m),
                )
