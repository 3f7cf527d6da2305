"""What a case must bring before what is compared in it says anything about a requirement.

Drawing brings most of it about: a case about frozen parameters has one. What depends on the sizes of a run, such as
the number of ranks, may never come about; a cell in which it never did has compared nothing, however much it judged.
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
    """One thing that a case has or has not."""

    summary: str
    """What a case must have, in words."""
    remedy: str
    """What brings such cases about."""
    holds: Callable[[Case], bool]

    @property
    def absent(self) -> str:
        """Said of a cell none of whose cases has it."""
        return f"no case had {self.summary} ({self.remedy})"


BYSTANDER = Condition(
    summary="a bystander",
    remedy="raise --ranks to 3, and claim sub_groups",
    holds=lambda case: case.world.size > sum(map(len, case.world.pipelines)),
)
"""A rank of the world outside the pipeline: only there is the default group another group."""

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
    summary="anything that was delayed",
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
