"""Two things at once that are each a subject of their own: a pair of parts, of which any two go together.

Which do not, and why, is in `APART`. Replicas and stages that are cut over ranks are parts, too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from pipeconform.case import blocks
from pipeconform.case.case import Case
from pipeconform.case.draw.changes import in_some_stage
from pipeconform.case.draw.pairs import Pair, has_part
from pipeconform.case.draw.subject import Form, Subject, group_of
from pipeconform.case.draw.subjects import (
    accumulate,
    buffers,
    checkpoint,
    clipped,
    compiled,
    declared,
    dropout,
    evaluation,
    float32_sums,
    frozen,
    gradient_hooks,
    hooks,
    input_hooks,
    kwargs,
    load,
    masters,
    optimizer,
    readout,
    recomputed,
    replicas,
    sources,
    tensor_parallel,
    tied_stages,
    unused,
    varying,
)
from pipeconform.case.focus import Focus

__all__ = ["APART", "PAIRS", "PARTS", "PARTS_OF_REPLICAS", "RANKS", "pairs_in"]

PARTS: tuple[Subject, ...] = (
    accumulate.ACCUMULATE,
    varying.VARYING,
    dataclasses.replace(load.LOAD, members=()),  # the other part says what the model has
    optimizer.OPTIMIZER,
    evaluation.EVAL,
    checkpoint.CHECKPOINT,
    # no state can be loaded into an expanded buffer
    dataclasses.replace(buffers.BUFFERS, contents=in_some_stage(blocks.BatchNorm(), blocks.Counting())),
    kwargs.KWARGS,
    dropout.DROPOUT,
    frozen.FROZEN,
    hooks.HOOKS,
    unused.UNUSED,
    input_hooks.INPUT_HOOKS,
    tied_stages.TIED_STAGES,
    gradient_hooks.GRADIENT_HOOKS,
    readout.READOUT,
    compiled.COMPILED,
)
"""The subjects of which two are drawn together; neighbours first, so that few cases have many parts.

Each is drawn with each of `OPTIONS`, too.
"""

OPTIONS: tuple[Subject, ...] = (
    declared.DECLARED,
    dataclasses.replace(recomputed.RECOMPUTED, members=()),  # as of a state that is loaded
)
"""The subjects that are options of all ranks, so that they come first in their pairs, as what ranks hold does."""

PARTS_OF_REPLICAS: tuple[Subject, ...] = (
    *PARTS,
    clipped.CLIPPED,
    masters.MASTERS,
    masters.SCALED,
    masters.SCALED_AUTOCAST,
    masters.CLIPPED_COPIES,
    masters.CLIPPED_SCALED,
    sources.SOURCES,
    float32_sums.FLOAT32_SUMS,
)
"""The subjects that are drawn in replicas: those in which replicas must agree, or have data of their own, too."""

RANKS: tuple[Subject, ...] = (replicas.REPLICAS, replicas.SHARDED, tensor_parallel.TENSOR)
"""The subjects about what ranks hold, each of which is drawn with one of `PARTS`; replicas with more."""

_HOOKS = (Focus.HOOKS, Focus.INPUT_HOOKS, Focus.GRADIENT_HOOKS)
_REPLICAS = (Focus.REPLICAS, Focus.SHARDED)
_REASONS: tuple[tuple[tuple[Focus, ...], tuple[Focus, ...], str], ...] = (
    ((Focus.VARYING,), (Focus.EVAL,), "LIF-1 draws evaluations of another size than training steps"),
    ((Focus.DECLARED,), (Focus.VARYING,), "a declaration says one shape for all microbatches"),
    ((Focus.LOAD,), (Focus.BUFFERS,), "LIF-4 draws states with buffers"),
    ((Focus.DROPOUT,), (Focus.EVAL,), "LIF-1 draws evaluations of models with dropout"),
    (_HOOKS, _HOOKS, "nothing that serves one kind of hook of the model prepares or clears another kind"),
    (
        (Focus.COMPILED,),
        _HOOKS,
        "the compiled module has no hooks; other modules' are those of FWD-17, FWD-26 and FWD-27",
    ),
    (
        (Focus.RECOMPUTED,),
        (*_HOOKS, Focus.BUFFERS),
        "what is computed again calls hooks again and updates buffers again; no engine promises otherwise",
    ),
    ((Focus.RECOMPUTED,), (Focus.DROPOUT,), "TRN-30 draws models with dropout"),
    (
        _REPLICAS,
        (Focus.FROZEN, Focus.UNUSED, Focus.BUFFERS, Focus.VARYING),
        "DPC-3 draws replicas with frozen and unused parameters, with buffers, and of sizes that change",
    ),
    (_REPLICAS, (Focus.ACCUMULATE,), "DPC-4 draws replicas that accumulate"),
    (_REPLICAS, (Focus.OPTIMIZER,), "DPC-1 draws optimizer steps"),
    (_REPLICAS, (Focus.TIED_STAGES,), "DPC-5 draws tied stages in replicas"),
    (_REPLICAS, (Focus.DROPOUT,), "the masks are recorded of one replica only"),
    (
        _REPLICAS,
        (Focus.COMPILED,),
        "torch.compile treats modules in wrappers in ways of its own, not of an engine",
    ),
    (
        (Focus.SHARDED,),
        (
            *(Focus.MASTERS, Focus.SCALED, Focus.SCALED_AUTOCAST),
            *(Focus.CLIPPED_COPIES, Focus.CLIPPED_SCALED, Focus.FLOAT32_SUMS),
        ),
        "fully_shard has a policy of mixed precision of its own, in the place of copies and sums beside its shards",
    ),
    (
        (Focus.SHARDED,),
        _HOOKS,
        "fully_shard puts parameters of its own in the place of those that hooks were registered on",
    ),
    (
        (*_REPLICAS, Focus.TENSOR),
        (Focus.READOUT,),
        "a wrapper or a front end may put parameters of its own in the place of the one that the loss function has",
    ),
    ((Focus.TENSOR,), (Focus.OPTIMIZER,), "DPC-7 draws optimizer steps"),
    (
        (Focus.TENSOR,),
        (
            *_HOOKS,
            Focus.CHECKPOINT,
            Focus.BUFFERS,
            Focus.DROPOUT,
            Focus.UNUSED,
            Focus.TIED_STAGES,
            Focus.COMPILED,
        ),
        "stages that are cut over ranks consist of linear maps and norms, which alone the contract can cut",
    ),
)

APART: Mapping[frozenset[Focus], str] = MappingProxyType(
    {
        frozenset({first, second}): reason
        for firsts, seconds, reason in _REASONS
        for first in firsts
        for second in seconds
        if first is not second
    }
)
"""Two parts that are not drawn together, and why."""


def _in_turn() -> Iterator[tuple[Subject, Subject]]:
    """Any two parts: neighbours, then those with one between them, and so on, then each with each option.

    What is compiled, which costs most, comes last.
    """
    places = sorted(
        itertools.combinations(range(len(PARTS)), 2), key=lambda both: (both[1] - both[0], both[0])
    )
    every = [
        *((PARTS[i], PARTS[j]) for i, j in places),
        *((option, part) for option in OPTIONS for part in PARTS),
    ]
    yield from sorted(every, key=lambda both: both[1].focus is Focus.COMPILED)


def _pairs(focus: Focus, both: Iterator[tuple[Subject, Subject]]) -> tuple[Pair, ...]:
    every = (Pair(focus=focus, first=first, second=second) for first, second in both)
    return tuple(pair for pair in every if pair.foci not in APART)


_OF_STAGES = _pairs(Focus.TOGETHER, _in_turn())
_OF_REPLICAS = _pairs(
    Focus.REPLICAS_TOGETHER,
    ((ranks, part) for part in PARTS_OF_REPLICAS for ranks in RANKS if ranks.form == "replicas"),
)
_OF_PARTS = _pairs(
    Focus.TENSOR_TOGETHER,
    ((ranks, part) for part in PARTS for ranks in RANKS if ranks.form == "tensor parallel"),
)
PAIRS: tuple[Pair, ...] = (*_OF_STAGES, *_OF_REPLICAS, *_OF_PARTS)
"""All pairs that go together."""

# what is the same for every case; finding it out costs more than asking a case for its parts
_PAIRS: dict[str, list[tuple[frozenset[Focus], Pair]]] = {}
for _pair in PAIRS:
    _PAIRS.setdefault(_pair.first.group, []).append((_pair.foci, _pair))
_PARTS = {
    group: tuple(dict.fromkeys(one for _, pair in of for one in (pair.first, pair.second)))
    for group, of in _PAIRS.items()
}


@functools.lru_cache(maxsize=1 << 14)  # asked when a case is drawn, made smaller, counted and checked again
def pairs_in(case: Case) -> tuple[Pair, ...]:
    """The pairs that a case has."""
    group = group_of(case)
    parts = _PARTS.get(group, ())
    found = frozenset(one.focus for one in parts if has_part(one, case))
    return tuple(pair for foci, pair in _PAIRS.get(group, ()) if foci <= found) if len(found) > 1 else ()


def _controls(case: Case) -> Iterator[tuple[str, Case]]:
    for pair in pairs_in(case):
        yield from pair.controls_of(case)


def _found(case: Case) -> bool:
    return bool(pairs_in(case))


def _subject(focus: Focus, pairs: tuple[Pair, ...], *, form: Form = "stages") -> Subject:
    """The subject that draws these pairs in turn."""
    members = tuple(pair.subject for pair in pairs)
    return Subject(
        focus=focus,
        form=form,
        trains=True,
        claimed=lambda claim, own: any(
            one.needs <= own.features and one.claimed(claim, own) for one in members
        ),
        found=_found,
        rarity=3,
        members=members,
        controls=_controls,
        control="without one of the two",
    )


TOGETHER = _subject(Focus.TOGETHER, _OF_STAGES)
REPLICAS_TOGETHER = _subject(Focus.REPLICAS_TOGETHER, _OF_REPLICAS, form="replicas")
TENSOR_TOGETHER = _subject(Focus.TENSOR_TOGETHER, _OF_PARTS, form="tensor parallel")
