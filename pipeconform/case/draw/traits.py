"""What a case is about, read off the case itself (stored and shrunk cases have no other memory of it)."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import MistakeKind
from pipeconform.case import blocks
from pipeconform.case.case import ByHand, Case, Eval, Load, Optimize, Passage, Train, Zero
from pipeconform.case.draw.whole import subject_of
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import Mistake
from pipeconform.case.replicas import Replicas

__all__ = ["traits"]


def traits(case: Case) -> frozenset[Focus]:
    """The foci whose subject the case contains; a case with none is a plain one."""
    return frozenset(_traits(case)) or frozenset({Focus.PLAIN})


def _traits(case: Case) -> Iterator[Focus]:
    model = case.model
    if case.is_mistaken:
        yield from map(_mistake, case.mistakes)
        if case.world.misplan is not None:
            neighbours = case.world.misplan.kind is MistakeKind.NEIGHBOURS
            yield Focus.NEIGHBOURS if neighbours else Focus.MISPLANNED
        return
    if case.world.tensor is not None:
        yield Focus.PLACED if case.world.tensor.boundary else Focus.TENSOR
        return
    if case.world.replicas is not None:
        yield _replicated(case, case.world.replicas)
        return
    if model.split is not None:
        yield subject_of(case)
        return
    if any(run.batch_size % run.num_microbatches for run in case.runs):
        yield Focus.UNEVEN
    if len({(run.batch_size, run.num_microbatches) for run in case.runs}) > 1:
        yield Focus.VARYING
    if model.output != "tensor":
        yield Focus.STRUCTURED
    if model.merged:
        yield Focus.MERGES
    if {"positions", "mask", "scale"} & set(model.carried):
        yield Focus.NO_GRAD
    elif model.container != "tensor" and not model.passages:
        yield Focus.BOUNDARY
    if model.dtype in ("bfloat16", "float16"):
        yield Focus.DTYPE
    for one in model.passages:
        yield _passage(one)
    if any(kwarg.kind in ("turned", "whole", "listed") for kwarg in model.kwargs):
        yield Focus.RULES
    elif any(kwarg.kind == "objects" for kwarg in model.kwargs):
        yield Focus.OBJECTS
    elif model.kwargs:
        yield Focus.KWARGS
    if model.tied:
        yield Focus.TIED_STAGES
    if model.batch_dim:
        yield Focus.BATCH_DIM
    if any(run.autocast for run in case.runs):
        yield Focus.AUTOCAST
    for block in case.blocks():
        if isinstance(block, blocks.Checkpointed):
            yield Focus.REENTRANT if block.reentrant else Focus.CHECKPOINT
    for kinds, focus in _BLOCKS:
        if case.has(*kinds):
            yield focus
    if case.loss.reduction == "sum" and case.loss.kind == "mse":
        yield Focus.SUM
    if case.loss.kind == "cross_entropy" or case.loss.scaled:
        yield Focus.TARGETS
    if any(stage.frozen or any(block.frozen for block in stage.blocks) for stage in model.stages):
        yield Focus.FROZEN
    if case.has(blocks.Layout):
        yield Focus.LAYOUT
    elif model.view_outputs and not case.has(blocks.Inplace):
        yield Focus.VIEWS
    if case.world.perturbations:
        yield Focus.DELAYED
    if case.world.placement:
        yield Focus.MISPLACED
    for step in case.trains:
        if step.by_hand is not None:
            yield _by_hand(step.by_hand)
    if model.input_requires_grad:
        yield Focus.INPUTS
    if any(isinstance(step, Optimize) for step in case.program):
        yield Focus.OPTIMIZER
    yield from _program(case)


_BLOCKS: tuple[tuple[tuple[type[blocks.Block], ...], Focus], ...] = (
    ((blocks.Hooked, blocks.Accumulating), Focus.HOOKS),
    ((blocks.Pieces, blocks.Common, blocks.Offsets, blocks.Joined), Focus.GRAPHS),
    ((blocks.Deferred,), Focus.DEFERRED),
    ((blocks.Shared,), Focus.SHARED),
    ((blocks.Inplace,), Focus.INPLACE),
    ((blocks.Unused, blocks.Branch), Focus.UNUSED),
    ((blocks.BatchNorm,), Focus.BUFFERS),
    ((blocks.Dropout,), Focus.DROPOUT),
    ((blocks.Auxiliary,), Focus.AUXILIARY),
    ((blocks.Stateful,), Focus.STATEFUL),
    ((blocks.Compiled,), Focus.COMPILED),
    ((blocks.Tied,), Focus.TIED),
)


def _by_hand(hand: ByHand) -> Focus:
    """What a step by hand is about."""
    if not hand.mistake:
        return Focus.BY_HAND
    return Focus.DISORDER if hand.mistake.startswith("weight") else Focus.OUT_OF_ORDER


def _mistake(mistake: Mistake) -> Focus:
    """What a mistake is about."""
    if mistake.where == "reduction":
        return Focus.HOOK_RAISES
    match mistake.kind:
        case MistakeKind.INPUT_SHAPE:
            return Focus.WRONG_SHAPE
        case MistakeKind.INPUT_DTYPE:
            return Focus.WRONG_DTYPE
        case MistakeKind.OUTPUT_SHAPE | MistakeKind.OUTPUT_DTYPE:
            return Focus.CHANGED if mistake.microbatch is None else Focus.CHANGED_ONCE
        case MistakeKind.GRADIENT:
            return Focus.WRONG_GRADIENT
        case MistakeKind.BATCH:
            return Focus.WRONG_BATCH
        case MistakeKind.EXCEPTION:
            return Focus.RAISES
    return Focus.WRONG_VALUES


def _replicated(case: Case, replicas: Replicas) -> Focus:
    """What a case with replicas is about: one thing, the least usual."""
    if case.world.perturbations:
        return Focus.REPLICA_DELAYS
    if case.model.tied:
        return Focus.REPLICA_TIES
    if case.has(blocks.SyncedNorm):
        return Focus.REPLICA_NORMS
    frozen = any(stage.frozen or any(block.frozen for block in stage.blocks) for stage in case.model.stages)
    sizes = {(run.batch_size, run.num_microbatches) for run in case.runs}
    if frozen or len(sizes) > 1 or case.has(blocks.BatchNorm, blocks.Unused, blocks.Branch):
        return Focus.REPLICA_CONTENTS
    if replicas.has_options or Focus.ACCUMULATE in _program(case):
        return Focus.REPLICA_OPTIONS
    return Focus.SHARDED if replicas.wrapper == "fully_shard" else Focus.REPLICAS


def _passage(passage: Passage) -> Focus:
    """What a passage is about."""
    match passage.kind:
        case "summed" | "turned":
            return Focus.GRADIENT_LAYOUT
        case "learned":
            return Focus.GRAPHS
        case "float8":
            return Focus.FLOAT8
        case "bypass":
            return Focus.IGNORED
        case "stream":
            return Focus.SKIP if passage.users else Focus.IGNORED
    return Focus.SHAPES


def _program(case: Case) -> Iterator[Focus]:
    """Training and evaluation mixed is one subject, training twice without zero_grad another."""
    if any(isinstance(step, Load) for step in case.program):
        yield Focus.LOAD
        return
    if any(isinstance(step, Eval) and step.guard for step in case.program):
        yield Focus.GUARDED
        return
    if {Train, Eval} <= {type(step) for step in case.program}:
        if not case.has(blocks.BatchNorm):
            yield Focus.EVAL
        return
    trained = False
    for step in case.program:
        if isinstance(step, Train):
            if trained:
                yield Focus.ACCUMULATE
                return
            trained = True
        elif isinstance(step, Zero):
            trained = False
