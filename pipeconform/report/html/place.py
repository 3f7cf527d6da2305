"""The place of a violation, and which computations and stages a picture marks for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeconform.case.case import Case, Eval, Step
from pipeconform.errors import BadTableError
from pipeconform.report.result import Violation
from pipeconform.schedule import Action, Kind

__all__ = ["Place", "case_in", "place_of", "stage_of", "suspects"]

_PART = re.compile(r"\b(step|rank|stage|microbatch) (\d+)")
_BACKWARD = frozenset({Kind.B, Kind.I, Kind.W})
_WEIGHTS = frozenset({Kind.B, Kind.W})


@dataclass(frozen=True, kw_only=True)
class Place:
    """Step of the program, rank of the world, stage and microbatch, each if known."""

    step: int | None = None
    rank: int | None = None
    stage: int | None = None
    microbatch: int | None = None

    def parts(self, case: Case) -> tuple[str, ...]:
        """In words, from the outside in: ``step 0 (train)``, then ``rank 1`` and so on."""
        known = {"step": self.step, "rank": self.rank, "stage": self.stage, "microbatch": self.microbatch}
        words = [f"{name} {number}" for name, number in known.items() if number is not None]
        if self.step is not None and self.step < len(case.program):
            words[0] += f" ({kind_of(case.program[self.step])})"
        return tuple(words)

    def pipeline_rank(self, case: Case) -> int | None:
        """The pipeline rank of `rank`; None if that is a bystander or not known."""
        ranks = case.world.pipeline_ranks
        return ranks.index(self.rank) if self.rank in ranks else None


def case_in(violation: Violation) -> Case:
    """The case of a pipeline's violation."""
    assert isinstance(violation.case, Case), "a wrapper's violations are laid out on their own"
    return violation.case


def place_of(violation: Violation) -> Place:
    """The place that a violation names (``step 0, rank 1``), or else that of its first wrong computation."""
    found = {name: int(number) for name, number in _PART.findall(violation.where)}
    wrong = _first_wrong(violation)
    if wrong is not None and wrong.microbatch is not None:
        found = {"stage": wrong.stage, "microbatch": wrong.microbatch} | found
    return Place(**found)


def _first_wrong(violation: Violation) -> Action | None:
    """The first wrong computation, if it ran and the result identifies it."""
    if violation.timeline is None or violation.first_wrong is None:
        return None
    rank, index = violation.first_wrong
    try:
        return Action.parse(violation.timeline[rank][index])
    except (IndexError, BadTableError):
        return None


def kind_of(step: Step) -> str:
    """The name of a step: ``train``, ``eval``, ``zero_grad`` or ``optimizer_step``."""
    return str(step.__struct_config__.tag)


def suspects(violation: Violation, place: Place) -> frozenset[Kind]:
    """The kinds of computation that a violation at this place is about; empty if it names none.

    An error, a hang or a crash names only a rank: which computation ran there at that moment is not known.
    """
    case = case_in(violation)
    if violation.status != "failed" or (place.stage is None and place.microbatch is None):
        return frozenset()
    if (
        place.step is not None
        and place.step < len(case.program)
        and isinstance(case.program[place.step], Eval)
    ):
        return frozenset({Kind.F})
    words = violation.signature
    if "input gradient" in words:
        return frozenset({Kind.B, Kind.I})
    if "gradient" in words or "scale" in words:
        return _WEIGHTS
    return _BACKWARD if "backward" in words else frozenset({Kind.F})


def stage_of(violation: Violation, place: Place) -> int | None:
    """The stage at fault; outputs and losses come from the last one."""
    of_last = violation.signature.startswith(("output", "no output", "loss", "no loss", "number of losses"))
    if place.stage is None and violation.status == "failed" and of_last:
        return case_in(violation).num_stages - 1
    return place.stage
