"""How the ranks of a pipeline compare their plans, before anything is built.

Every rank reads its plan by itself. If one of them finds a mistake, it tells all others, and all raise the
same error: no rank is left waiting for one that has given up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist

from pipeconform.adapter import Plan, TensorSpec
from pipeconform.errors import Unsupported

from .tables import FILES, OFFERS

Kinds = tuple[str, ...]
"""Tensors in words, such as ``float64[2, 3]``."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """One rank's statement about its plan; plain data, so that it can be sent."""

    position: int
    schedule: str
    num_stages: int
    num_microbatches: int
    declared: Mapping[int, tuple[Kinds, Kinds]] | None
    """By owned stage, what it takes and gives; None if the plan does not say."""
    problem: str = ""
    """What is wrong with the plan by itself."""
    unsupported: str = ""
    """What in the plan is not claimed."""


class Agreement:
    """Compares the plans of all ranks; `check` is called on every rank of the pipeline."""

    def check(self, plan: Plan) -> None:
        """Exchange the plans' contents.

        Raises:
            ValueError: On every rank alike: a plan is wrong, or two of them differ; the text says whose and how.
            Unsupported: On every rank alike: a plan is outside the claims.
        """
        everyone = self.exchange(self.mine(plan), plan)
        for problem in self.problems(everyone, num_ranks=len(plan.ranks.pipeline_ranks)):
            raise ValueError(problem)
        for one in everyone:
            if one.unsupported:
                raise Unsupported(one.unsupported)

    def mine(self, plan: Plan) -> Told:
        """This rank's statement."""
        position = plan.ranks.pipeline_rank
        assert position is not None
        declared = plan.declared
        return Told(
            position=position,
            schedule=plan.schedule,
            num_stages=len(plan.stages),
            num_microbatches=plan.num_microbatches,
            declared=None
            if declared is None
            else {s: (_in_words(one.inputs), _in_words(one.outputs)) for s, one in declared.items()},
            problem=next(problems_of(plan), ""),
            unsupported=next(limits_of(plan), ""),
        )

    def exchange(self, mine: Told, plan: Plan) -> Sequence[Told]:
        """Every rank's statement, by position."""
        if plan.ranks.pipeline_group is None or len(plan.ranks.pipeline_ranks) == 1:
            return [mine]
        everyone: list[Told] = [mine] * len(plan.ranks.pipeline_ranks)
        dist.all_gather_object(everyone, mine, group=plan.ranks.pipeline_group)
        return everyone

    def problems(self, everyone: Sequence[Told], *, num_ranks: int) -> Iterator[str]:
        """What is wrong, in words; the first one is raised."""
        for one in everyone:
            if one.problem:
                yield f"pipeline rank {one.position}: {one.problem}"
        first = everyone[0]
        for one in everyone[1:]:
            both = f"pipeline ranks 0 and {one.position} were given different plans:"
            if one.schedule != first.schedule:
                yield f"{both} schedules {first.schedule!r} and {one.schedule!r}"
            if one.num_stages != first.num_stages:
                yield f"{both} {first.num_stages} and {one.num_stages} stages"
            if one.num_microbatches != first.num_microbatches:
                yield f"{both} {first.num_microbatches} and {one.num_microbatches} microbatches"
        silent = [one.position for one in everyone if one.declared is None]
        if 0 < len(silent) < num_ranks:
            yield f"boundaries are declared on some ranks only, not on pipeline rank {', '.join(map(str, silent))}"
        yield from self.disagreements({s: io for one in everyone for s, io in (one.declared or {}).items()})

    def disagreements(self, declared: Mapping[int, tuple[Kinds, Kinds]]) -> Iterator[str]:
        """Adjacent stages that declare different tensors for the boundary between them."""
        for s, (_, given) in sorted(declared.items()):
            taken = declared[s + 1][0] if s + 1 in declared else given
            if taken != given:
                yield (
                    f"stage {s} gives {', '.join(given) or 'nothing'}, but stage {s + 1} takes "
                    f"{', '.join(taken) or 'nothing'}"
                )


def problems_of(plan: Plan) -> Iterator[str]:
    """What is wrong with a plan by itself."""
    p, n = len(plan.ranks.pipeline_ranks), len(plan.stages)
    offer = OFFERS.get(plan.schedule)
    if offer is None and not plan.schedule.endswith(FILES):
        yield f"there is no schedule {plan.schedule!r}; there are {', '.join(OFFERS)}"
    if n % p:
        yield f"{n} stages are not a multiple of {p} ranks"
    elif offer is not None and offer.claim.stages_per_rank == (1,) and n != p:
        yield f"{plan.schedule} has one stage per rank, but there are {n} stages for {p} ranks"


def limits_of(plan: Plan) -> Iterator[str]:
    """What in a plan, correct by itself, is outside the claims."""
    p, m, offer = len(plan.ranks.pipeline_ranks), plan.num_microbatches, OFFERS.get(plan.schedule)
    if not plan.trains or offer is None or len(plan.stages) % p:
        return
    v = len(plan.stages) // p
    if not offer.claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m):
        yield f"{plan.schedule} is not claimed for p={p}, v={v}, m={m}"


def _in_words(tensors: Sequence[TensorSpec]) -> Kinds:
    return tuple(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in tensors)
