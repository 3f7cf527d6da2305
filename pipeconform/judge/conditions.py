"""Conditions on a case without which it says nothing about a requirement.

The way in which cases are drawn meets most conditions: a case about frozen parameters has one. What depends on the
sizes of a run, such as the number of ranks, may never happen; a cell in which it never did has compared nothing,
however many cases it judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeconform.case.case import Case, Eval

__all__ = [
    "BYSTANDER",
    "DELAY",
    "EVALUATION",
    "SEVERAL_RANKS",
    "SEVERAL_REPLICAS",
    "SEVERAL_STAGES",
    "SOMEBODY_ELSE",
    "UNEVEN_BATCH",
    "Condition",
]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A property of a case."""

    summary: str
    """What a case must have, in words."""
    remedy: str
    """What the user can do to get such cases."""
    holds: Callable[[Case], bool]

    @property
    def absent(self) -> str:
        """The message for a cell in which no case meets the condition."""
        return f"no case had {self.summary} ({self.remedy})"


BYSTANDER = Condition(
    summary="a bystander",
    remedy="it needs the claim sub_groups, and --ranks of 3 or more",
    holds=lambda case: case.world.size > sum(map(len, case.world.pipelines)),
)
"""A rank of the world outside the pipeline: without one, the default group has the same ranks as the pipeline."""

SEVERAL_RANKS = Condition(
    summary="two pipeline ranks",
    remedy="raise --ranks to 2",
    holds=lambda case: case.num_ranks > 1,
)

SOMEBODY_ELSE = Condition(
    summary="a rank that holds no output",
    remedy="raise --ranks to 2",
    holds=lambda case: case.world.size > 1,
)

SEVERAL_STAGES = Condition(
    summary="two stages",
    remedy="raise --ranks to 2",
    holds=lambda case: case.num_stages > 1,
)

SEVERAL_REPLICAS = Condition(
    summary="a second replica",
    remedy="raise --ranks to 2",
    holds=lambda case: case.world.num_replicas > 1,
)

DELAY = Condition(
    summary="a delay",
    remedy="raise --ranks to 2, or --examples",
    holds=lambda case: bool(case.world.perturbations),
)

UNEVEN_BATCH = Condition(
    summary="a batch that its microbatches do not divide evenly",
    remedy="raise --examples",
    holds=lambda case: any(run.batch_size % run.num_microbatches for run in case.runs),
)

EVALUATION = Condition(
    summary="an evaluation",
    remedy="claim Feature.EVAL",
    holds=lambda case: any(isinstance(step, Eval) for step in case.program),
)
