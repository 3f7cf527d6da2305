"""What an adapter claims about its implementation, as plain data: features and their limits.

`pipeconform.adapter` re-exports every name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Self

__all__ = [
    "BoundaryClaim",
    "Capabilities",
    "ClippingClaim",
    "DataParallelClaim",
    "Description",
    "ErrorContract",
    "Feature",
    "GradientScale",
    "MicrobatchRule",
    "MistakeKind",
    "Placement",
    "ScheduleClaim",
    "TensorParallelClaim",
    "TracingClaim",
]


class Claimable(StrEnum):
    """The type of features: a member has a value, which stands in files, and a meaning for people."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Feature(Claimable):
    """Optional features. An adapter claims what its implementation documents; nothing is on by default."""

    OUTPUTS = "outputs", "run() returns the merged output of the last stage"
    OUTPUTS_ON_REQUEST = (
        "outputs_on_request",
        "a training step returns no output without Batch.returns_outputs",
    )
    MICROBATCH_LOSSES = "microbatch_losses", "one loss per microbatch, in batch order"
    EVAL = "eval", "run(Mode.EVAL, …): forward only"
    EVAL_LOSSES = "eval_losses", "run(Mode.EVAL, …) returns losses as a training step does"
    SECOND_SCHEDULE = (
        "second_schedule",
        "a schedule without a loss may evaluate the stages of the training schedule, see Plan.second_schedule",
    )
    INPUT_GRADIENTS = "input_gradients", "inputs of the first stage that require grad receive it"
    ACCUMULATION = "accumulation", "steps without zero_grad in between add up"
    KWARGS = "kwargs", "keyword arguments beside the positional ones"
    KWARG_GRADIENTS = "kwarg_gradients", "keyword arguments that require grad receive it, in their .grad"
    LOSS_KWARGS = "loss_kwargs", "extra keyword arguments for the loss function"
    LOSS_PARAMETERS = (
        "loss_parameters",
        "the loss function may use parameters of the last stage, as a fused output layer and cross-entropy do",
    )
    STRUCTURED_OUTPUTS = "structured_outputs", "the last stage may return a tuple"
    MAPPING_OUTPUTS = "mapping_outputs", "the last stage may return a dict"
    TOKENS = "tokens", "integer inputs (an embedding in the first stage)"
    FROZEN = "frozen", "parameters and whole stages that need no gradient"
    FREEZING = (
        "freezing",
        "between steps, the caller may set requires_grad of all parameters of a stage that owned() returns",
    )
    UNUSED_PARAMETERS = "unused_parameters", "parameters that some or all microbatches do not use"
    SHARED_IN_STAGE = "shared_in_stage", "one parameter used twice inside a stage"
    SHARED_ACROSS_STAGES = "shared_across_stages", "Plan.tied, between stages of one rank"
    SHARED_ACROSS_RANKS = "shared_across_ranks", "Plan.tied, between stages of different ranks"
    BUFFERS = "buffers", "batch norm and other modules with state"
    DROPOUT = "dropout", "random masks, judged by replaying them"
    USER_HOOKS = "user_hooks", "forward, backward and tensor hooks of the model itself"
    UNEVEN_BATCHES = "uneven_batches", "B is not a multiple of m (split as torch.tensor_split does)"
    VARYING_MICROBATCHES = "varying_microbatches", "m may change between steps, and B with it"
    VARYING_SHAPES = "varying_shapes", "the size of microbatches may change between steps"
    OPTIMIZER = "optimizer", "apply(OptimizerStep)"
    STATE = "state", "state() returns parameters and buffers"
    DECLARED_TABLE = "declared_table", "the pipeline has table(), see DeclaresTable"
    CUSTOM_FUNCTIONS = "custom_functions", "stages may use torch.autograd.Function"
    CHECKPOINTING = "checkpointing", "stages may use torch.utils.checkpoint"
    COMPILED = "compiled", "stages may hold modules under torch.compile"
    AUTOCAST = "autocast", "run() may be called under torch.autocast"
    OBJECTS = "objects", "keyword arguments that are no tensors, given whole to every microbatch"
    BATCH_SOURCES = "batch_sources", "run() takes the microbatches of a step from Batch.source"
    BATCH_DIM = "batch_dim", "the batch may be dimension 1 of inputs, outputs and targets"
    SPLIT_DIMS = (
        "split_dims",
        "a keyword argument may be split in a dimension of its own, see Plan.kwarg_rules",
    )
    WHOLE_TENSORS = (
        "whole_tensors",
        "a tensor that is a keyword argument may be given whole to every microbatch",
    )
    BLOCK_MASKS = (
        "block_masks",
        "a BlockMask of flex attention is split with the batch; one of a single sample is given whole",
    )
    CUSTOM_SPLITS = "custom_splits", "a function of the user's may split a keyword argument"
    MERGE_DIMS = "merge_dims", "an output may be merged in a dimension of its own, see Plan.output_rules"
    WHOLE_OUTPUTS = "whole_outputs", "an output that is the same in every microbatch appears once"
    CUSTOM_MERGES = "custom_merges", "a function of the user's may merge an output"
    LOADING = "loading", "apply(LoadState)"
    SAVING = "saving", "a pipeline goes on from what one before it has saved, see SavesTraining"
    GRADIENT_NORM = "gradient_norm", "the pipeline has gradient_norm(), see MeasuresGradients"
    CLIPPING = "clipping", "an optimizer step clips the gradients first, see Plan.clipping"
    MASTER_WEIGHTS = "master_weights", "the optimizer steps float32 copies of bfloat16 parameters"
    FLOAT32_SUMS = (
        "float32_sums",
        "gradients of bfloat16 parameters are added up in float32, see Plan.float32_sums",
    )
    LOSS_SCALING = "loss_scaling", "float16 models are trained with a scaled loss, see Plan.loss_scaling"
    SCALED_AUTOCAST = (
        "scaled_autocast",
        "float32 models are trained under autocast in float16 with a scaled loss, see Plan.autocast",
    )
    STAGE_OPERATIONS = "stage_operations", "the pipeline has open_stages(), see OffersStages"
    DEFERRED_WEIGHTS = "deferred_weights", "weight gradients left to a function, see Plan.deferred_weights"
    DECLARED_BOUNDARIES = "declared_boundaries", "Plan.declared reaches the engine"
    TABLES = "tables", "ranks may compute in an order of the user's own, see Plan.table"
    RECOMPUTATION = (
        "recomputation",
        "the engine may compute stages again in the backward instead of keeping activations, see Plan.recompute",
    )
    WRITTEN_TABLES = "written_tables", "schedules may be written to a file and read again, see Plan.rewritten"
    LATE_RECEIVES = "late_receives", "receives may be posted as late as possible, see Plan.late_receives"


class Placement(StrEnum):
    """Which pipeline ranks own which stages; see :func:`placement_of`."""

    LOOP = "loop"  # stage s on rank s mod p
    V = "v"  # down the ranks, then up again
    MIRROR = "mirror"  # stage s on ranks s and p−1−s (two directions)
    SINGLE_PROCESS = "single_process"  # every stage in a world of one


class MicrobatchRule(StrEnum):
    """Which numbers of microbatches m a schedule takes besides its minimum, for p ranks."""

    ANY = "any"
    MULTIPLE_OF_RANKS = "multiple_of_ranks"  # m mod p = 0
    EVEN = "even"  # m mod 2 = 0
    WHOLE_ROUNDS = "whole_rounds"  # m mod max(1, m div p) = 0


_MOST_LETTERS = 200
_MOST_CLAIMED = 256
_MOST_SIZES = 64
_MOST_SECONDS = 3600


def require_line(text: object, what: str) -> None:
    """Raise `BadAdapterError` unless `text` is one short printable line; names appear in tables, pages and logs."""
    if isinstance(text, str) and not (text.isprintable() and len(text) <= _MOST_LETTERS):
        raise ValueError(
            f"{what} is {text[:40]!r} of {len(text)} characters; expected one line of at most {_MOST_LETTERS} "
            f"printable characters"
        )


def require_variant_names(variants: Iterable[str]) -> None:
    """Refuse a variant name that is taken or that ids cannot hold.

    Raises:
        BadAdapterError: a name is refused.
    """
    from pipeconform.errors import BadAdapterError

    for name in variants:
        if name == "default" or not name.replace("-", "").replace("_", "").isalnum():
            raise BadAdapterError(
                f"an environment variant cannot be called {name!r}: letters, digits, - and _, and not 'default'"
            )


def _require_sizes(claim: ScheduleClaim) -> None:
    """Refuse sizes that would make a run too long; other code reports fields of a wrong type."""
    sizes = claim.stages_per_rank
    if isinstance(sizes, tuple | list) and (len(sizes) > _MOST_SIZES or not all(map(_usual, sizes))):
        largest = max((one for one in sizes if isinstance(one, int)), default=0)
        raise ValueError(
            f"{claim.name}: stages_per_rank has {len(sizes)} entries up to {_told(largest)}; expected at most "
            f"{_MOST_SIZES}, none of them above {_MOST_CLAIMED}"
        )
    for name in ("min_microbatches", "min_microbatches_per_stage", "min_microbatches_per_rank"):
        if not _usual(value := getattr(claim, name)):
            raise ValueError(f"{claim.name}: {name} is {_told(value)}; expected at most {_MOST_CLAIMED}")


def _require_features(claim: ScheduleClaim) -> None:
    """Refuse a lacking feature that does not exist; other code reports fields of a wrong type."""
    if isinstance(claim.lacks, frozenset | set | tuple | list):
        from pipeconform.errors import UnknownNameError

        for one in claim.lacks:
            if isinstance(one, str) and one not in set(Feature):
                raise UnknownNameError(f"feature (that {claim.name} lacks)", one, list(Feature))


def _told(number: int) -> str:
    return str(number) if number < 10**18 else "more than 10^18"


def _usual(number: object) -> bool:
    return not isinstance(number, int) or abs(number) <= _MOST_CLAIMED


@dataclass(frozen=True, kw_only=True)
class ScheduleClaim:
    """One schedule an implementation offers, with its limits (p ranks, v stages per rank, m microbatches)."""

    name: str
    placement: Placement = Placement.LOOP
    stages_per_rank: tuple[int, ...] = (1,)
    min_ranks: int = 1
    max_ranks: int = 8
    ranks_even: bool = False
    min_microbatches: int = 1
    min_microbatches_per_stage: int = 0  # m ≥ this × number of stages
    min_microbatches_per_rank: int = 0  # m ≥ this × p
    microbatches: MicrobatchRule = MicrobatchRule.ANY
    trains: bool = True
    evaluates: bool = True
    split_backward: bool = False
    split_weights: Literal["all", "deferred"] = "all"
    """With `split_backward`: the stages whose weight gradients are computed later than those of their inputs, all, or
    only those for which `Plan.deferred_weights` returns a builder. Others have their whole backward at once, where the
    schedule has the input part."""
    takes_placement: bool = True
    """Whether the user gives the schedule its stages, and so can place them otherwise than it expects; False if
    the engine itself chooses which rank has which stage."""
    lacks: frozenset[Feature] = frozenset()
    """Features that the implementation claims and does not offer under this schedule. What needs one of them is not
    claimed here; see `Capabilities.under`."""
    boundary: BoundaryClaim | None = None
    """What may cross from stage to stage under this schedule; None: what `Capabilities.boundary` says."""
    family: str | None = None
    """pipeconform's name of the schedule (`pipeconform.schedule.families()`); None: its order is not judged.

    With `Placement.MIRROR` a family of two directions, such as ``dualpipe``: its second chain has the same stages, on
    the ranks from the last to the first. There, the order is judged as executed, and not as declared.
    """

    def __post_init__(self) -> None:
        """Refuse a family or a lacking feature that does not exist, and sizes that are too large.

        Raises:
            UnknownNameError: the family, or one of the features, is unknown; the message lists the nearest.
            ValueError: a size is too large, or one of family and placement has two directions and the other has not.
        """
        require_line(self.name, "a schedule's name")
        _require_sizes(self)
        _require_features(self)
        if self.family is not None:
            from pipeconform.schedule.families import family

            placement = family(self.family).placement
            if (placement == "bidirectional") != (self.placement is Placement.MIRROR):
                raise ValueError(
                    f"{self.name}: family {self.family!r} has the placement {placement!r}, and the claim "
                    f"{self.placement!s}; families of two directions, and only they, are claimed with Placement.MIRROR"
                )

    def least_microbatches(self, *, num_ranks: int, stages_per_rank: int) -> int:
        """The smallest m this schedule takes with p = `num_ranks` and v = `stages_per_rank`."""
        return max(
            self.min_microbatches,
            self.min_microbatches_per_rank * num_ranks,
            self.min_microbatches_per_stage * num_ranks * stages_per_rank,
        )

    def takes(self, *, num_ranks: int, stages_per_rank: int, num_microbatches: int) -> bool:
        """Whether the claim covers this p, v and m."""
        p, m = num_ranks, num_microbatches
        rule = {
            MicrobatchRule.ANY: True,
            MicrobatchRule.MULTIPLE_OF_RANKS: m % p == 0,
            MicrobatchRule.EVEN: m % 2 == 0,
            MicrobatchRule.WHOLE_ROUNDS: m % max(1, m // p) == 0,
        }[self.microbatches]
        return (
            self.min_ranks <= p <= self.max_ranks
            and not (self.ranks_even and p % 2)
            and stages_per_rank in self.stages_per_rank
            and m >= self.least_microbatches(num_ranks=p, stages_per_rank=stages_per_rank)
            and rule
        )


@dataclass(frozen=True, kw_only=True)
class BoundaryClaim:
    """What may cross from one stage to the next."""

    max_tensors: int = 1
    containers: tuple[Literal["tensor", "tuple", "list", "mapping"], ...] = ("tensor",)
    """What a stage may hand on. Mappings are not drawn; with them, one in a first step is not called a mistake."""
    dtypes: tuple[str, ...] = ("float32",)
    min_ndim: int = 2
    max_ndim: int = 3
    no_grad_tensors: bool = False  # float tensors that need no gradient
    non_float_tensors: bool = False  # integer and bool tensors
    empty_tensors: bool = False  # tensors with a dimension of size 0
    complex_tensors: bool = False  # complex tensors, which may need a gradient
    inputs: int | None = None
    """The most tensors that the first stage takes; None: as many as may cross a boundary."""
    differ: bool = True
    """Whether the boundaries of one model may have different numbers of tensors, shapes or dtypes. False for engines
    that have one list of shapes, or one cache of them, for all boundaries."""

    @property
    def most_inputs(self) -> int:
        """The most tensors that the first stage takes."""
        return self.max_tensors if self.inputs is None else min(self.inputs, self.max_tensors)


@dataclass(frozen=True, kw_only=True)
class TracingClaim:
    """A front end that makes the stages by splitting a whole model; see `Split`."""

    splits: tuple[Literal["annotations", "policy", "points"], ...] = ("annotations", "policy", "points")
    kwargs: Literal["none", "first_stage", "all"] = "none"
    """Where the computations that use a keyword argument of the model may stand."""
    number_kwargs: bool = False  # keyword arguments may be numbers, which change from step to step
    after: bool = True  # a point may be after a submodule, and not only before one
    skips: bool = False  # a value used beyond the next stage
    tied: bool = False  # a parameter used by several stages: each of them has the sum of its gradients
    knows_boundaries: bool = False  # the pipeline has boundaries(), see KnowsBoundaries


@dataclass(frozen=True, kw_only=True)
class DataParallelClaim:
    """Replicas of the whole pipeline, each with data of its own; see `Plan.data_parallel`.

    Gradients are the mean over replicas. The claim covers the schedules claimed with a loop or a V.
    """

    wrappers: tuple[Literal["ddp", "fully_shard"], ...] = ("ddp",)
    """torch's ``DistributedDataParallel``, torch's ``fully_shard``, or an equivalent."""
    options: tuple[
        Literal["bucket_views", "static_graph", "find_unused", "hook", "nested", "mixed_precision"], ...
    ] = ()
    """The fields of `DataParallel` that may be set."""
    accumulation: bool = False  # steps without zero_grad in between add up, every one of them synchronised
    synchronised_norms: bool = False
    """Stages may hold batch norms that communicate over the stage's replicas, in every forward and backward."""


@dataclass(frozen=True, kw_only=True)
class TensorParallelClaim:
    """Stages that are cut over several ranks each; see `Plan.tensor_parallel`. Needs a claim of `sub_groups`.

    The claim covers the schedules claimed with a loop or a V.
    """

    maps: tuple[Literal["column", "row"], ...] = ("column", "row")
    """How linear maps may be cut; empty: stages are not cut, see `boundaries` and `batches`."""
    sequence: bool = False  # the main stream may be cut along the sequence inside a stage
    sharded: bool = False  # together with replicas in fully_shard, if these are claimed
    boundaries: tuple[Literal["whole", "sequence", "width"], ...] = ()
    """How `DTensor`s that cross from stage to stage may be placed."""
    batches: tuple[Literal["whole", "samples", "sequence", "width"], ...] = ()
    """How the `DTensor`s of a batch may be placed; see `TensorParallel.batch`."""


@dataclass(frozen=True, kw_only=True)
class ClippingClaim:
    """How an optimizer step may clip gradients, where `Feature.CLIPPING` is claimed; see `Plan.clipping`."""

    norms: tuple[Literal["two", "maximum"], ...] = ("two", "maximum")
    dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16", "float16")
    """Of the models whose gradients are clipped."""

    def takes(self, *, norm: str, dtype: str) -> bool:
        """Whether gradients of this dtype may be clipped by this norm."""
        return norm in self.norms and dtype in self.dtypes


@dataclass(frozen=True, kw_only=True)
class GradientScale:
    """How a mean-reduced loss is averaged over m microbatches (a sum-reduced loss is never scaled)."""

    at: Literal["loss", "gradient", "none"] = "loss"  # loss / m before backward, or gradient / m after it
    input_gradients_scaled: bool = True


class MistakeKind(StrEnum):
    """What a user or a model can do wrong and an implementation can promise an error for.

    Shapes and dtypes are wrong if they differ from those of the steps before; a promise about them is due where there
    were such steps, or where other microbatches of the same step are right.
    """

    INPUT_SHAPE = "input_shape"  # of an argument of the first stage, against the steps before
    INPUT_DTYPE = "input_dtype"
    OUTPUT_SHAPE = "output_shape"  # of what a stage hands on
    OUTPUT_DTYPE = "output_dtype"
    ARITY = "arity"  # fewer or more tensors than before, among the arguments or handed on
    NO_TENSOR = "no_tensor"  # None, or something else that is no tensor, in the place of one
    GRADIENT = "gradient"  # a hook gives the gradient of a stage's output another shape or dtype
    BATCH = "batch"  # fewer samples than microbatches; targets, or arguments, for other numbers of samples
    SOURCE = "source"  # `Batch.source` ends in the middle of a step; it does so on every rank
    NO_GRADIENTS = "no_gradients"  # a training step under `torch.no_grad` or `inference_mode`, on every rank
    EXCEPTION = "exception"  # an exception inside a stage or the loss function
    PLAN = "plan"  # a plan that is impossible, or not the same on all ranks; every rank raises then
    NEIGHBOURS = (
        "neighbours"  # two adjacent stages declare different boundaries (`Plan.declared`): all ranks raise
    )
    TABLE = "table"  # a `Plan.table` that cannot be carried out; it is the same on all ranks, and all raise


@dataclass(frozen=True, kw_only=True)
class ErrorContract:
    """What an implementation promises about mistakes; others are judged for results, deaths and hangs only."""

    promises: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By `MistakeKind`, the names of exception types such as ``ValueError`` or ``StageError``. The rank where the
    mistake is raises one of them, or one derived from them, with a message that names stage, tensor, expected and
    actual."""
    tells_others: bool = False
    """Whether the other ranks' errors name the stage that failed, instead of a connection that broke."""

    def __post_init__(self) -> None:
        """Raise `UnknownNameError` for an unknown kind of mistake; the message lists the nearest."""
        from pipeconform.errors import UnknownNameError

        for kind in self.promises:
            if kind not in set(MistakeKind):
                raise UnknownNameError("kind of mistake", kind, list(MistakeKind))

    def promised(self, kind: MistakeKind) -> tuple[str, ...]:
        """The names of the exception types promised for a kind of mistake; empty if there is no promise."""
        return self.promises.get(kind, ())


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an implementation claims, with limits. Cases are drawn inside these limits only.

    What is claimed holds together, too: cases combine features.
    """

    schedules: tuple[ScheduleClaim, ...]
    features: frozenset[Feature] = frozenset()
    """The optional features, each under every schedule that does not lack it (`ScheduleClaim.lacks`)."""
    boundary: BoundaryClaim = BoundaryClaim()
    scale: GradientScale = GradientScale()
    clipping: ClippingClaim = ClippingClaim()
    reductions: tuple[Literal["mean", "sum"], ...] = ("mean",)
    losses: tuple[Literal["mse", "cross_entropy"], ...] = ("mse", "cross_entropy")
    """The losses that it can be given, for an engine that has its own: mean squared differences from a target of the
    output's shape, or cross-entropy of the last dimension over classes. ``Plan.loss`` says which one is meant."""
    sub_groups: bool = False  # a pipeline group that is not the world
    fresh_process_per_build: bool = False
    patience: float = 2.0
    """Seconds without processor time on any rank after which this is a hang."""
    optimizers: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")
    """With which its parameters can be stepped: most cases take ``sgd``, so that it must be among them."""
    fused_optimizer: bool = False
    """``run(TRAIN)`` steps the optimizer and clears the gradients; see :meth:`Pipeline.apply`."""
    mode_from: Literal["call", "gradients"] = "call"
    """What decides whether a step trains: how it is called, or whether gradients are switched on. In an engine of the
    second kind a step under ``torch.no_grad`` is an evaluation, and no mistake."""
    tied_stages: Literal["any", "ends"] = "any"
    """Which stages `Plan.tied` may name: any, or the first and the last only, as input and output embeddings."""
    kwargs_scope: Literal["stage", "rank", "pipeline"] = "rank"
    inputs_consumed_by: Literal["first_stage", "all"] = "first_stage"
    """``all``: every rank looks at the inputs. Ranks without the first stage then get finite values instead of NaN, of
    the same shapes and dtypes, but never the true ones: those come from stage to stage."""
    targets_consumed_by: Literal["last_stage", "all"] = "last_stage"
    """The same for targets and the last stage; which targets are ignored is the same everywhere."""
    outputs_on: Literal["last_stage", "all"] = "last_stage"
    loss_on: Literal["last_stage", "all"] = "last_stage"
    loss_over: Literal["microbatch", "batch"] = "microbatch"
    """Whether the loss function sees one microbatch's output at a time, or the merged output once."""
    computed_by: Literal["modules", "graphs"] = "modules"
    """What computes a stage in a step: its module, or graphs that the engine has made of it, once. Of graphs only what
    they return is seen, and not in which order they run, what passes between them, or what they keep."""
    world: Literal["distributed", "single_process"] = "distributed"
    tracing: TracingClaim | None = None
    """A front end that splits a whole model; None: every plan brings its stages."""
    data_parallel: DataParallelClaim | None = None
    """Replicas of the pipeline; None: there is one."""
    tensor_parallel: TensorParallelClaim | None = None
    """Stages that are cut over ranks, and tensors between stages that are; None: neither."""
    elsewhere: tuple[str, ...] = ()
    """What the adapter claims with other releases of the engine only, each with what this release lacks for it."""

    def __post_init__(self) -> None:
        """Raise ValueError for numbers beyond any implementation's, for no loss, and for steps without SGD."""
        if isinstance(self.schedules, tuple | list) and len(self.schedules) > _MOST_CLAIMED:
            raise ValueError(f"{len(self.schedules)} schedules are claimed; expected at most {_MOST_CLAIMED}")
        if isinstance(self.losses, tuple | list) and not self.losses:
            raise ValueError(
                "no loss is claimed, so nothing could be trained; expected one at least in losses"
            )
        steps = isinstance(self.features, frozenset) and Feature.OPTIMIZER in self.features
        if steps and isinstance(self.optimizers, tuple | list) and "sgd" not in self.optimizers:
            raise ValueError(
                f"optimizers is {self.optimizers!r}, without 'sgd', with which most cases that claim "
                f"Feature.OPTIMIZER step: add it, or leave that feature out"
            )
        if isinstance(self.patience, int | float) and not 0 <= self.patience <= _MOST_SECONDS:
            raise ValueError(f"patience is {self.patience} s; expected 0 to {_MOST_SECONDS} s")

    def schedule(self, name: str) -> ScheduleClaim | None:
        """The claim for the schedule called `name`, or None if it is not claimed."""
        return next((claim for claim in self.schedules if claim.name == name), None)

    def ties(self, stages: tuple[int, ...], *, num_stages: int) -> bool:
        """Whether these stages may share a parameter, on whichever ranks they are."""
        return self.tied_stages == "any" or stages == (0, num_stages - 1)

    def under(self, claim: ScheduleClaim | None) -> Capabilities:
        """What is claimed under one schedule: everything but the features that it lacks, with its own boundaries."""
        if claim is None or not (self.features & claim.lacks or claim.boundary):
            return self
        return replace(self, features=self.features - claim.lacks, boundary=claim.boundary or self.boundary)


@dataclass(frozen=True, kw_only=True)
class Description:
    """Who an implementation is and what it claims."""

    name: str
    version: str
    capabilities: Capabilities
    errors: ErrorContract = ErrorContract()
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Named environment settings to judge the implementation under, besides the default ones.

    They are set before torch is imported. `Adapter.describe` is called again under each: it may promise more errors
    there; the capabilities are the same.
    """
    packages: tuple[str, ...] = ()
    """Import names of the packages or modules that implement it, which ``pipeconform run --coverage`` measures; without
    any, the adapter's own module. Other files in the adapter's folder are then the adapter's: their errors are no
    violations."""
    built_on: str = ""
    """The name of the implementation that it is built on, as results have it, such as ``torch.distributed.pipelining``:
    what is known of that one is known of it, too. Empty if none."""

    def __post_init__(self) -> None:
        """Raise `BadAdapterError` for a name that is too long or a variant that is refused."""
        require_line(self.name, "the implementation's name")
        require_line(self.version, "the implementation's version")
        if self.built_on:
            require_line(self.built_on, "the name of what it is built on")
        require_variant_names(self.variants)
