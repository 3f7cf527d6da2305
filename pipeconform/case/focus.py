"""What cases can be about, and what of it an implementation claims."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipeconform.claims import BoundaryClaim, Capabilities, Feature, Placement, ScheduleClaim
from pipeconform.case.case import KwargKind, MergedKind, PassageKind
from pipeconform.case.replication_claims import options_of

__all__ = [
    "LEAST_RANKS",
    "LEAST_SIDES",
    "LEAST_STAGES",
    "MISTAKEN",
    "REPLICATED",
    "TENSOR_PARALLEL",
    "WHOLE",
    "Focus",
    "Limits",
    "is_claimed",
    "merged_kinds",
    "ruled_kinds",
    "shape_kinds",
]


class Focus(StrEnum):
    """What a case is about."""

    PLAIN = "plain"
    UNEVEN = "uneven batch"
    STRUCTURED = "structured outputs"
    BOUNDARY = "several boundary tensors"
    NO_GRAD = "boundary tensors without gradient"
    DTYPE = "boundary dtypes"
    KWARGS = "keyword arguments"
    HOOKS = "the model's own hooks"
    SUM = "sum-reduced loss"
    ACCUMULATE = "accumulation"
    FROZEN = "frozen parameters"
    UNUSED = "unused parameters"
    INPUTS = "input gradients"
    SHARED = "shared parameters"
    INPLACE = "in-place operations"
    BUFFERS = "buffers"
    DROPOUT = "dropout"
    TARGETS = "loss arguments and targets"
    OPTIMIZER = "optimizer steps"
    EVAL = "order of training and evaluation"
    VARYING = "sizes that change between steps"
    WHOLE = "stages from a front end"
    WHOLE_CONTENTS = "what a front end must follow"
    WHOLE_WRONG = "models that cannot be split as asked"
    WHOLE_SHAPES = "shapes that a front end knows"
    VIEWS = "stage outputs that are views"
    GRAPHS = "autograd graphs that are hard to take apart"
    DEFERRED = "deferred-weight functions"
    BY_HAND = "stages driven by hand"
    DISORDER = "stage operations that are not due"
    OUT_OF_ORDER = "stage operations out of order"
    MISPLACED = "a placement that is not the schedule's"
    EDGE = "edge sizes"
    """Plain cases of sizes at the edges of the claim and beyond; the case itself looks plain."""
    LAYOUT = "memory layouts"
    SHAPES = "numbers of dimensions and sizes"
    SKIP = "skip connections"
    IGNORED = "ignored inputs and outputs"
    GRADIENT_LAYOUT = "layouts of boundary gradients"
    FLOAT8 = "float8 boundary tensors"
    AUXILIARY = "auxiliary losses"
    CHECKPOINT = "activation checkpointing"
    REENTRANT = "reentrant activation checkpointing"
    STATEFUL = "module state kept for the backward"
    TIED = "tied weights"
    TIED_STAGES = "weights tied across stages"
    COMPILED = "compiled modules"
    AUTOCAST = "autocast"
    OBJECTS = "keyword arguments that are no tensors"
    BATCH_DIM = "another batch dimension"
    RULES = "keyword arguments with a split of their own"
    MERGES = "outputs with a merge of their own"
    GUARDED = "evaluation with gradients switched off"
    LOAD = "loading a state"
    DELAYED = "delays"
    TRAFFIC = "traffic"
    """Plain cases with several stages, most with boundaries of some size; the case itself looks plain."""
    WRONG_SHAPE = "inputs of a wrong shape"
    WRONG_DTYPE = "inputs of a wrong dtype"
    CHANGED = "stage outputs that change"
    CHANGED_ONCE = "stage outputs that change in one microbatch"
    WRONG_VALUES = "values that are missing, too many, or no tensors"
    WRONG_GRADIENT = "gradients that a hook makes wrong"
    WRONG_BATCH = "batches that cannot be split"
    RAISES = "exceptions in stages and losses"
    MISPLANNED = "plans that are wrong"
    NEIGHBOURS = "stages that disagree about their boundary"
    REPLICAS = "replicas"
    SHARDED = "sharded replicas"
    REPLICA_CONTENTS = "replicas whose parameters are not used alike"
    REPLICA_OPTIONS = "options of data-parallel wrappers"
    REPLICA_DELAYS = "replicas that are delayed"
    REPLICA_TIES = "weights tied across stages, in replicas"
    HOOK_RAISES = "communication hooks that raise"
    REPLICA_NORMS = "batch norms synchronised over replicas"
    TENSOR = "tensor-parallel stages"
    PLACED = "DTensors between stages"


WHOLE = frozenset({Focus.WHOLE, Focus.WHOLE_CONTENTS, Focus.WHOLE_WRONG, Focus.WHOLE_SHAPES})
"""The foci whose cases give the model whole."""
MISTAKEN = frozenset(
    {
        Focus.WRONG_SHAPE,
        Focus.WRONG_DTYPE,
        Focus.CHANGED,
        Focus.CHANGED_ONCE,
        Focus.WRONG_VALUES,
        Focus.WRONG_GRADIENT,
        Focus.WRONG_BATCH,
        Focus.RAISES,
        Focus.HOOK_RAISES,
        Focus.MISPLANNED,
        Focus.NEIGHBOURS,
    }
)
"""The foci whose cases do something wrong on purpose."""
REPLICATED = frozenset(
    {
        Focus.REPLICAS,
        Focus.SHARDED,
        Focus.REPLICA_CONTENTS,
        Focus.REPLICA_OPTIONS,
        Focus.REPLICA_DELAYS,
        Focus.REPLICA_TIES,
        Focus.HOOK_RAISES,
        Focus.REPLICA_NORMS,
    }
)
"""The foci whose cases have replicas of the pipeline."""
TENSOR_PARALLEL = frozenset({Focus.TENSOR, Focus.PLACED})
"""The foci whose cases have every stage on several ranks."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits inside which cases are drawn: the claims, and the most processes to use."""

    capabilities: Capabilities
    max_ranks: int = 4
    min_ranks: int = 1


def is_claimed(focus: Focus, claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    """Whether the implementation claims what cases of this focus need under this schedule."""
    features, boundary = capabilities.features, capabilities.boundary
    if not claim.trains and focus in _TRAINING | MISTAKEN:
        return False
    if not claim.trains and Feature.EVAL not in features:
        return False
    if focus in REPLICATED:
        return _replicas_are_claimed(focus, claim, capabilities)
    if focus in TENSOR_PARALLEL:
        return _cuts_are_claimed(focus, claim, capabilities)
    if focus in WHOLE:
        tracing = capabilities.tracing
        return tracing is not None and (focus is not Focus.WHOLE_SHAPES or tracing.knows_boundaries)
    match focus:
        case Focus.STRUCTURED:
            return bool(features & {Feature.STRUCTURED_OUTPUTS, Feature.MAPPING_OUTPUTS})
        case Focus.BOUNDARY:
            return boundary.max_tensors > 1 or boundary.containers != ("tensor",)
        case Focus.NO_GRAD:
            return boundary.max_tensors > 1 and (boundary.no_grad_tensors or boundary.non_float_tensors)
        case Focus.DTYPE:
            return bool({"bfloat16", "float16"} & set(boundary.dtypes))
        case Focus.SHAPES:
            return _passes(boundary) and bool(shape_kinds(boundary))
        case Focus.SKIP | Focus.IGNORED | Focus.GRADIENT_LAYOUT:
            return _passes(boundary)
        case Focus.FLOAT8:
            return _passes(boundary) and boundary.no_grad_tensors
        case Focus.AUTOCAST:
            return Feature.AUTOCAST in features and {"float32", "bfloat16"} <= set(boundary.dtypes)
        case Focus.BATCH_DIM:
            return Feature.BATCH_DIM in features and boundary.max_ndim >= 3
        case Focus.RULES:
            return bool(ruled_kinds(features)) and (
                capabilities.kwargs_scope != "rank" or 1 in claim.stages_per_rank
            )
        case Focus.MERGES:
            return bool(merged_kinds(features))
        case Focus.OBJECTS if capabilities.kwargs_scope == "rank":
            return Feature.OBJECTS in features and 1 in claim.stages_per_rank
        case Focus.GRAPHS:
            return claim.trains and claim.split_backward
        case Focus.BY_HAND | Focus.DISORDER:
            return claim.trains and claim.split_backward and Feature.STAGE_OPERATIONS in features
        case Focus.OUT_OF_ORDER:
            return claim.trains and Feature.STAGE_OPERATIONS in features
        case Focus.MISPLANNED:
            return capabilities.world == "distributed" and claim.max_ranks > 1
        case Focus.MISPLACED:
            several = any(v > 1 for v in claim.stages_per_rank) and claim.max_ranks > 1
            return claim.trains and several and claim.placement in (Placement.LOOP, Placement.V)
        case Focus.TIED_STAGES:
            return bool(_ties(claim, features))
        case Focus.VARYING:
            return bool(features & {Feature.VARYING_MICROBATCHES, Feature.VARYING_SHAPES})
        case Focus.SUM:
            return "sum" in capabilities.reductions
        case Focus.KWARGS if capabilities.kwargs_scope == "rank":
            return Feature.KWARGS in features and 1 in claim.stages_per_rank
    return _NEEDS.get(focus) is None or _NEEDS[focus] in features


def _ties(claim: ScheduleClaim, features: frozenset[Feature]) -> bool:
    """Whether any two stages can be tied: of one rank, or of different ones."""
    if claim.placement is Placement.MIRROR:
        return False  # a stage has several owners there, which add up its gradients by themselves
    several = any(v > 1 for v in claim.stages_per_rank) or claim.placement is Placement.SINGLE_PROCESS
    one_rank = Feature.SHARED_ACROSS_STAGES in features and several
    return one_rank or (Feature.SHARED_ACROSS_RANKS in features and claim.max_ranks > 1)


def shape_kinds(boundary: BoundaryClaim) -> tuple[PassageKind, ...]:
    """The passages of unusual shape inside a claim, see `Passage`."""
    inside: dict[PassageKind, bool] = {
        "scalar": boundary.min_ndim == 0,
        "flat": boundary.min_ndim <= 1,
        "single": boundary.max_ndim >= 4,
        "deep": boundary.max_ndim >= 5,
        "empty": boundary.empty_tensors,
    }
    return tuple(kind for kind, claimed in inside.items() if claimed)


def ruled_kinds(features: frozenset[Feature]) -> tuple[KwargKind, ...]:
    """The keyword arguments with a split of their own inside a claim, see `Kwarg`."""
    inside: dict[KwargKind, Feature] = {
        "turned": Feature.SPLIT_DIMS,
        "whole": Feature.WHOLE_TENSORS,
        "listed": Feature.CUSTOM_SPLITS,
    }
    return tuple(kind for kind, feature in inside.items() if {feature, Feature.KWARGS} <= features)


def merged_kinds(features: frozenset[Feature]) -> tuple[MergedKind, ...]:
    """The outputs with a merge of their own inside a claim, see `pipeconform.case.build.merges`."""
    inside: dict[MergedKind, Feature] = {
        "turned": Feature.MERGE_DIMS,
        "whole": Feature.WHOLE_OUTPUTS,
        "total": Feature.CUSTOM_MERGES,
    }
    needed = {Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS}
    return tuple(kind for kind, feature in inside.items() if needed | {feature} <= features)


def _passes(boundary: BoundaryClaim) -> bool:
    """Whether a second tensor may cross a boundary."""
    return boundary.max_tensors > 1 and bool({"tuple", "list"} & set(boundary.containers))


_NEEDS = {
    Focus.KWARGS: Feature.KWARGS,
    Focus.HOOKS: Feature.USER_HOOKS,
    Focus.ACCUMULATE: Feature.ACCUMULATION,
    Focus.FROZEN: Feature.FROZEN,
    Focus.UNUSED: Feature.UNUSED_PARAMETERS,
    Focus.INPUTS: Feature.INPUT_GRADIENTS,
    Focus.SHARED: Feature.SHARED_IN_STAGE,
    Focus.BUFFERS: Feature.BUFFERS,
    Focus.DROPOUT: Feature.DROPOUT,
    Focus.OPTIMIZER: Feature.OPTIMIZER,
    Focus.EVAL: Feature.EVAL,
    Focus.DEFERRED: Feature.DEFERRED_WEIGHTS,
    Focus.AUXILIARY: Feature.CUSTOM_FUNCTIONS,
    Focus.CHECKPOINT: Feature.CHECKPOINTING,
    Focus.REENTRANT: Feature.CHECKPOINTING,
    Focus.STATEFUL: Feature.CUSTOM_FUNCTIONS,
    Focus.COMPILED: Feature.COMPILED,
    Focus.TIED: Feature.SHARED_IN_STAGE,
    Focus.OBJECTS: Feature.OBJECTS,
    Focus.GUARDED: Feature.EVAL,
    Focus.LOAD: Feature.LOADING,
    Focus.NEIGHBOURS: Feature.DECLARED_BOUNDARIES,
}
_TRAINING = {
    Focus.EVAL,
    Focus.SUM,
    Focus.ACCUMULATE,
    Focus.FROZEN,
    Focus.UNUSED,
    Focus.INPUTS,
    Focus.DROPOUT,
    Focus.TARGETS,
    Focus.OPTIMIZER,
    Focus.DEFERRED,
    Focus.GRADIENT_LAYOUT,
    Focus.AUXILIARY,
    Focus.CHECKPOINT,
    Focus.REENTRANT,
    Focus.STATEFUL,
}
LEAST_STAGES = {
    Focus.SHAPES: 2,
    Focus.IGNORED: 2,
    Focus.GRADIENT_LAYOUT: 2,
    Focus.FLOAT8: 2,
    Focus.SKIP: 3,
    Focus.TIED_STAGES: 2,
    Focus.CHANGED: 2,
    Focus.CHANGED_ONCE: 2,
    Focus.TRAFFIC: 2,
    Focus.NEIGHBOURS: 2,
    Focus.PLACED: 2,
}
"""Stages without which a focus has no subject."""
LEAST_RANKS = {Focus.MISPLANNED: 2}
"""Ranks without which a focus has no subject."""
LEAST_SIDES = {Focus.MISPLACED: 2}
"""Ranks, and stages per rank, without which a focus has no subject."""


def _replicas_are_claimed(focus: Focus, claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    """Whether replicas of this kind are claimed under a schedule."""
    own, features = capabilities.data_parallel, capabilities.features
    if own is None or not claim.trains or not capabilities.sub_groups:
        return False
    if claim.placement not in (Placement.LOOP, Placement.V):
        return False
    match focus:
        case Focus.REPLICA_NORMS:
            return own.synchronised_norms and "ddp" in own.wrappers and Feature.BUFFERS in features
        case Focus.REPLICAS:
            return "ddp" in own.wrappers
        case Focus.SHARDED:
            return "fully_shard" in own.wrappers
        case Focus.REPLICA_OPTIONS:
            return bool(options_of(own))
        case Focus.HOOK_RAISES:
            return "ddp" in own.wrappers and "hook" in own.options
        case Focus.REPLICA_TIES:
            needed = {Feature.SHARED_ACROSS_RANKS, Feature.OPTIMIZER}
            return needed <= features and "ddp" in own.wrappers and claim.max_ranks > 1
        case Focus.REPLICA_CONTENTS:
            return bool(
                features & {Feature.VARYING_MICROBATCHES, Feature.FROZEN, Feature.BUFFERS}
                or (Feature.UNUSED_PARAMETERS in features and "find_unused" in own.options)
            )
    return True


def _cuts_are_claimed(focus: Focus, claim: ScheduleClaim, capabilities: Capabilities) -> bool:
    """Whether stages, or tensors between them, that are cut over ranks are claimed under a schedule."""
    own = capabilities.tensor_parallel
    if own is None or not claim.trains or not capabilities.sub_groups:
        return False
    if claim.placement not in (Placement.LOOP, Placement.V):
        return False
    return bool(own.boundaries if focus is Focus.PLACED else own.maps)
