"""Shorter programs, and models, steps and worlds with fewer special features."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Case, Eval, Freeze, LossSpec, Optimize, Stage, Step, Train, Zero
from pipeconform.case.simpler.scope import MAPS, ORDINARY
from pipeconform.case.simpler.variant import variant, with_model
from pipeconform.case.strict import defaults_of

__all__ = ["fewer_blocks", "fewer_features", "fewer_steps", "plainer_values", "smaller_tensors"]

_WIDTHS = (1, 2, 3, 4, 6, 8)
_SEQUENCES = (0, 1, 2, 3)
_MOST_WINDOWS = 8
"""The longest program of which every part is tried; of longer ones, only beginnings and ends are."""
_SIZES = frozenset({"width", "sequence", "stages", "split", "size", "pipeline_ranks", "others"})
"""Fields that other functions make smaller, or that the case is about."""


def fewer_steps(case: Case) -> Iterator[Case]:
    """Cases with a part of the program, the shortest first, then without single steps."""
    steps, n = case.program, len(case.program)
    short = n <= _MOST_WINDOWS
    lengths = range(1, n) if short else sorted({1, 2, 3, 4, 5, n // 4, n // 2, n - 1})
    parts: list[tuple[Step, ...]] = []
    for length in lengths:
        starts = range(n - length, -1, -1) if short else (0, n - length)
        parts += [steps[start : start + length] for start in starts]
    if short:
        parts += [(*steps[:i], *steps[i + 1 :]) for i in range(1, n - 1)]
    for part in dict.fromkeys(parts):
        if not isinstance(part[0], Zero | Optimize) and not isinstance(part[-1], Zero | Freeze):
            optimizer = case.optimizer if any(isinstance(step, Optimize) for step in part) else None
            yield from variant(case, program=part, optimizer=optimizer)


def fewer_features(case: Case) -> Iterator[Case]:
    """Cases without a special feature of the model, the loss, the steps, the replicas or the world."""
    model, world = case.model, case.world
    if model.carried or model.passages or model.container != "tensor":
        yield from with_model(case, carried=(), passages=(), container="tensor")
    if model.classes:
        yield from _unclassified(case)
    for name, less in itertools.chain(_entries_less(model), _usual(model)):
        yield from with_model(case, **{name: less})
    if model.split is not None:
        for name, usual in _usual(model.split):
            yield from with_model(case, split=structs.replace(model.split, **{name: usual}))
    for name, usual in _usual(case.loss):
        yield from variant(case, loss=structs.replace(case.loss, **{name: usual}))
    for name, less in _entries_less(world):
        yield from variant(case, world=structs.replace(world, **{name: less}))
    if world.replicas is not None:
        for name, usual in _usual(world.replicas):
            if name != "wrapper":
                replicas = structs.replace(world.replicas, **{name: usual})
                yield from variant(case, world=structs.replace(world, replicas=replicas))
    yield from _plainer_steps(case)


def fewer_blocks(case: Case) -> Iterator[Case]:
    """Cases with plainer stages that keep their special blocks: all stages, single stages, then block by block."""
    stages = case.model.stages
    yield from with_model(case, stages=tuple(map(_plainest, stages)))
    for s, stage in enumerate(stages):
        yield from _with_stage(case, s, _plainest(stage))
    for s, stage in enumerate(stages):
        if stage.frozen:
            yield from _with_stage(case, s, structs.replace(stage, frozen=False))
        for b, block in enumerate(stage.blocks):
            rest = (*stage.blocks[:b], *stage.blocks[b + 1 :])
            if rest and not isinstance(block, blocks.Embedding | blocks.Head):
                yield from _with_stage(case, s, structs.replace(stage, blocks=rest))
            for plainer in _plainer(block):
                changed = (*stage.blocks[:b], plainer, *stage.blocks[b + 1 :])
                yield from _with_stage(case, s, structs.replace(stage, blocks=changed))


def smaller_tensors(case: Case) -> Iterator[Case]:
    """Cases with shorter sequences or none, and smaller widths."""
    model = case.model
    sequences = [length for length in _SEQUENCES if length < model.sequence]
    widths = [width for width in _WIDTHS if width < model.width]
    if sequences and widths:
        yield from with_model(case, sequence=sequences[0], width=widths[0])
    for length in sequences:
        yield from with_model(case, sequence=length)
    for width in widths:
        yield from with_model(case, width=width)


def plainer_values(case: Case) -> Iterator[Case]:
    """The case with the first seed."""
    if case.seed:
        yield from variant(case, seed=0)


# ------------------------------------------------------------------------------------------ what is usual


def _usual(value: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """The fields that differ from their defaults, with the defaults."""
    for name, usual in defaults_of(type(value)).items():
        if name not in _SIZES and usual is not msgspec.NODEFAULT and getattr(value, name) != usual:
            yield name, usual


def _entries_less(value: msgspec.Struct) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The fields that are tuples, each without one of its entries."""
    held = {name: getattr(value, name) for name in defaults_of(type(value)) if name not in _SIZES}
    several = {name: own for name, own in held.items() if isinstance(own, tuple) and len(own) > 1}
    for name, own in several.items():
        for i in range(len(own)):
            yield name, (*own[:i], *own[i + 1 :])


def _unclassified(case: Case) -> Iterator[Case]:
    """Cases with a mean of squares instead of classes, and with numbers instead of tokens."""
    heads = (blocks.Head, blocks.Embedding)
    stages = tuple(
        structs.replace(stage, blocks=tuple(block for block in stage.blocks if not isinstance(block, heads)))
        for stage in case.model.stages
    )
    model = structs.replace(case.model, stages=stages, classes=0, tokens=False)
    yield from variant(case, model=model, loss=LossSpec(reduction=case.loss.reduction))
    if case.model.tokens:
        first = structs.replace(case.model.stages[0], blocks=case.model.stages[0].blocks[1:])
        yield from with_model(case, stages=(first, *case.model.stages[1:]), tokens=False)


_TOGETHER = {"autocast": Train | Eval}
"""Settings that several kinds of steps have alike, by name."""


def _plainer_steps(case: Case) -> Iterator[Case]:
    """Cases with the default for one setting of the steps at a time."""
    names = dict.fromkeys(
        (_TOGETHER.get(name, type(step)), name)
        for step in case.program
        for name, _ in _usual(step)
        if name not in ("batch_size", "num_microbatches", "mistake")
    )
    for kind, name in names:
        changed = [
            structs.replace(step, **{name: usual})
            if isinstance(step, kind) and (usual := dict(_usual(step)).get(name, ...)) is not ...
            else step
            for step in case.program
        ]
        yield from variant(case, program=tuple(changed))
    for step in case.trains:
        if step.by_hand is not None:
            for name, usual in _usual(step.by_hand):
                if name not in ("stage", "microbatch"):
                    yield from _with_steps(case, step, by_hand=structs.replace(step.by_hand, **{name: usual}))
        if step.mistake is not None and step.mistake.early:
            yield from _with_steps(case, step, mistake=structs.replace(step.mistake, early=False))
    if case.optimizer is not None:
        for name, usual in _usual(case.optimizer):
            yield from variant(case, optimizer=structs.replace(case.optimizer, **{name: usual}))


def _with_steps(case: Case, old: Train | Eval, **changes: Any) -> Iterator[Case]:
    new = structs.replace(old, **changes)
    yield from variant(case, program=tuple(new if step == old else step for step in case.program))


# ------------------------------------------------------------------------------------------ blocks


def _with_stage(case: Case, s: int, stage: Stage) -> Iterator[Case]:
    stages = case.model.stages
    if stages[s] != stage:
        yield from with_model(case, stages=(*stages[:s], stage, *stages[s + 1 :]))


def _plainest(stage: Stage) -> Stage:
    """The stage with its special blocks, and one linear map in place of all ordinary ones."""
    found: list[AnyBlock] = []
    placed = False
    for block in stage.blocks:
        if not isinstance(block, ORDINARY) or block.frozen:
            found.append(block)
        elif not placed and isinstance(block, MAPS):
            placed = True
            found.append(blocks.Linear())
    return structs.replace(stage, blocks=tuple(found))


def _plainer(block: AnyBlock) -> Iterator[AnyBlock]:
    if isinstance(block, MAPS) and block != blocks.Linear(frozen=block.frozen):
        yield blocks.Linear(frozen=block.frozen)
    for name, usual in _usual(block):
        yield structs.replace(block, **{name: usual})
