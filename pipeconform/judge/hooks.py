"""How often the hooks of a model ran, in microbatches and in dry runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.forward import gradients_with_hooks, outputs_are_right
from pipeconform.judge.timeline import executed
from pipeconform.plural import plural

__all__ = ["Ran", "hooks_are_kept", "hooks_that_ran"]

_OF_PARAMETERS = frozenset({"post_accumulate_grad", "parameter"})
"""Hooks on parameters: a dry run computes no gradient of a parameter, so that they have no reason to run there."""


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
            message=f"the {self.kind.replace('_', '-')} hook in stage {self.stage} ran {plural(self.count, 'time')} "
            f"for {plural(self.num_microbatches, 'microbatch')}; expected {self.expected}"
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
                in_batch = kind in _OF_PARAMETERS and evidence.capabilities.loss_over == "batch"
                yield Ran(
                    kind=kind,
                    step=expected.step,
                    rank=owners[0].rank,
                    stage=s,
                    num_microbatches=m,
                    count=sum(found.get(kind, 0) for found in counts),
                    # a backward pass over the whole batch adds to each parameter once
                    expected=each // m if in_batch else each,
                    in_dry_runs=0 if kind in _OF_PARAMETERS else probes[s] * (each // m),
                )


def hooks_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """Hooks ran as often as they must, apart from dry runs, and values and gradients are those that they returned."""
    for one in hooks_that_ran(evidence):
        evidence.compared()
        if not one.expected <= one.count <= one.expected + one.in_dry_runs:
            yield one.finding()
    yield from outputs_are_right(evidence)
    yield from gradients_with_hooks(evidence)
