"""The candidates for a simpler case, in order: leaps first, then part by part, with the largest cut of each part first.

A case is simpler if there is less to read before it is understood: processes count most, then stages, steps,
microbatches, special features, samples, and the sizes of tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case
from pipeconform.case.simpler.contents import (
    fewer_blocks,
    fewer_features,
    fewer_steps,
    plainer_values,
    smaller_tensors,
)
from pipeconform.case.simpler.sizes import fewer_microbatches, fewer_processes, fewer_samples, fewer_stages
from pipeconform.case.strict import defaults_of

__all__ = ["PARTS", "leaps", "simpler", "weight"]

Part = Callable[[Case], Iterator[Case]]
Allowed = Callable[[Case], bool]

PARTS: tuple[Part, ...] = (
    fewer_steps,
    fewer_processes,
    fewer_stages,
    fewer_microbatches,
    fewer_features,
    fewer_blocks,
    smaller_tensors,
    fewer_samples,
    plainer_values,
)
_COSTLY = (blocks.Mlp, blocks.Attention, blocks.Decoder)
_SEVERAL = 2
"""The number of ranks, microbatches and values below which little can go wrong between them."""
_LEAPS: tuple[tuple[bool, frozenset[Part]], ...] = (
    (False, frozenset()),
    (True, frozenset()),
    (True, frozenset({fewer_features, fewer_blocks})),
    (True, frozenset({fewer_steps})),
    (True, frozenset({fewer_steps, fewer_features, fewer_blocks})),
    (True, frozenset({fewer_processes, fewer_stages, fewer_microbatches})),
)
"""For each leap, whether several ranks and microbatches remain, and which parts stay unchanged."""


def weight(case: Case) -> tuple[int, ...]:
    """The sort key of simplicity: the smaller, the simpler the case."""
    runs = case.runs
    stages = case.model.stages
    told = (
        structs.replace(case.model, stages=()),
        *stages,
        case.loss,
        *case.program,
        case.optimizer,
        case.world,
    )
    return (
        case.world.size,
        len(stages),
        len(runs),
        len(case.program),
        sum(run.num_microbatches for run in runs),
        sum(map(_told, told)) + sum(isinstance(block, _COSTLY) for block in case.blocks()),
        sum(run.batch_size for run in runs),
        case.model.sequence + case.model.width,
        case.seed,
    )


def simpler(case: Case, part: Part, allowed: Allowed) -> Iterator[Case]:
    """The simpler allowed cases that differ from `case` in one part."""
    limit = weight(case)
    return (one for one in part(case) if weight(one) < limit and allowed(one))


def leaps(case: Case, allowed: Allowed) -> Iterator[Case]:
    """Cases in which several parts are as simple as allowed, with the same seed; the simplest first."""
    for several, left in _LEAPS:

        def holds(one: Case, several: bool = several) -> bool:
            return allowed(one) and not (several and _has_few(one, case)) and _has_values(one, case)

        found = case
        for part in PARTS:
            if part not in left and part is not plainer_values:
                while (less := next(simpler(found, part, holds), None)) is not None:
                    found = less
        if found != case:
            yield found


def _has_few(one: Case, case: Case) -> bool:
    """Whether `one` has a single rank or microbatch, and `case` has several."""
    most, least = (min(run.num_microbatches for run in which.runs) for which in (case, one))
    return one.num_ranks < min(_SEVERAL, case.num_ranks) or least < min(_SEVERAL, most)


def _has_values(one: Case, case: Case) -> bool:
    return one.model.width >= min(_SEVERAL, case.model.width)


@functools.lru_cache(maxsize=1 << 14)  # most parts of a candidate are those of the case that it was made from
def _told(part: msgspec.Struct | None) -> int:
    """The number of values to read in a part of a case: those that differ from their defaults, and tags."""
    return _leaves(part)


def _leaves(value: Any) -> int:
    if isinstance(value, tuple):
        return sum(map(_leaves, value))
    if not isinstance(value, msgspec.Struct):
        return 1
    own = ((getattr(value, name), usual) for name, usual in defaults_of(type(value)).items())
    tagged = value.__struct_config__.tag is not None
    return tagged + sum(_leaves(one) for one, usual in own if one != usual)
