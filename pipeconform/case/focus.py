"""The names of what cases can be about, and the limits within which cases are drawn.

Everything else about a subject is in its file in `pipeconform.case.draw.subjects`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pipeconform.claims import Capabilities

__all__ = ["Focus", "Limits"]


class Focus(StrEnum):
    """What a case can be about; the values appear in reports."""

    PLAIN = "plain"
    UNEVEN = "uneven batch"
    STRUCTURED = "structured outputs"
    BOUNDARY = "several boundary tensors"
    NO_GRAD = "boundary tensors without gradient"
    DTYPE = "boundary dtypes"
    KWARGS = "keyword arguments"
    HOOKS = "the model's own hooks"
    INPUT_HOOKS = "hooks on a stage's inputs"
    GRADIENT_HOOKS = "hooks on parameters and on a module's backward"
    SUM = "sum-reduced loss"
    ACCUMULATE = "accumulation"
    FROZEN = "frozen parameters"
    UNUSED = "unused parameters"
    INPUTS = "input gradients"
    SHARED = "shared parameters"
    INPLACE = "in-place operations"
    ACTIVATIONS = "stages that end in an activation"
    DECODERS = "layers of language models"
    BLOCK_MASKS = "block masks"
    BUFFERS = "buffers"
    DROPOUT = "dropout"
    TARGETS = "loss arguments and targets"
    COUNTED = "means over the targets that count"
    OPTIMIZER = "optimizer steps"
    CLIPPED = "clipped gradients"
    MASTERS = "master weights"
    SCALED = "scaled losses"
    CLIPPED_COPIES = "clipped gradients of copies"
    CLIPPED_SCALED = "clipped gradients of scaled losses"
    FLOAT32_SUMS = "sums in float32"
    EVAL = "order of training and evaluation"
    EVAL_LOSSES = "losses of evaluation"
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
    ORDERS = "orders of the user's own"
    ANY_ORDERS = "microbatches in any order"
    LATE_RECEIVES = "receives that are posted late"
    EDGE = "edge sizes"
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
    SOURCES = "batches from a source"
    GUARDED = "evaluation with gradients switched off"
    LOAD = "loading a state"
    TOGETHER = "two things at once"
    DELAYED = "delays"
    TRAFFIC = "traffic"
    WRONG_SHAPE = "inputs of a wrong shape"
    WRONG_DTYPE = "inputs of a wrong dtype"
    CHANGED = "stage outputs that change"
    CHANGED_ONCE = "stage outputs that change in one microbatch"
    WRONG_VALUES = "values that are missing, too many, or no tensors"
    WRONG_GRADIENT = "gradients that a hook makes wrong"
    WRONG_BATCH = "batches that cannot be split"
    SOURCE_ENDS = "sources that end in the middle of a step"
    RAISES = "exceptions in stages and losses"
    MISPLANNED = "plans that are wrong"
    NEIGHBOURS = "stages that disagree about their boundary"
    WRONG_TABLE = "tables that cannot be carried out"
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
    REPLICAS_TOGETHER = "two things at once in replicas"
    TENSOR_TOGETHER = "two things at once in tensor-parallel stages"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits within which cases are drawn: the claims, and the number of processes to use."""

    capabilities: Capabilities
    max_ranks: int = 4
    min_ranks: int = 1
