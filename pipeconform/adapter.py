"""The contract between pipeconform and a pipeline-parallel implementation.

An *adapter* is any object with the methods of :class:`Adapter`; nothing is subclassed. On every rank
of the world the harness calls, in this order::

    adapter.describe()            what it is and what it claims (plain data)
    adapter.setup_process()       once per process, before the first build
    pipeline = adapter.build(plan)
        pipeline.run(mode, batch) / .apply(operation) / .gradients() / .state()
    pipeline.close()

``build`` is called on *every* rank of the world, bystanders included, because creating a process
group is collective. A plan outside the adapter's claims is answered with
:class:`pipeconform.errors.Unsupported`. What is not claimed is reported as *not claimed*, never as
passed; what is claimed is drawn and judged.

Gradients and state are keyed by the *builder's* parameter names: an engine that prefixes or shards
parameters maps them back. Every call is made on every rank in the same order, so any of them may
communicate; a bystander's pipeline does nothing (:class:`Bystander`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

__all__ = [
    "AdamStep",
    "Adapter",
    "Batch",
    "Boundary",
    "BoundaryClaim",
    "Bystander",
    "Capabilities",
    "DeclaresTable",
    "Description",
    "ErrorContract",
    "Feature",
    "GradientScale",
    "KnowsBoundaries",
    "LoadState",
    "Loss",
    "MeasuresGradients",
    "Microbatch",
    "MicrobatchRule",
    "Mode",
    "OffersStages",
    "Operation",
    "OptimizerStep",
    "Pipeline",
    "Placement",
    "Plan",
    "Ranks",
    "ScheduleClaim",
    "SgdStep",
    "Split",
    "SplitPoint",
    "StageOperations",
    "StepResult",
    "TensorSpec",
    "TracingClaim",
    "ZeroGrad",
    "module_gradients",
    "module_state",
    "optimizer_of",
    "placement_of",
    "step_modules",
]

# --------------------------------------------------------------------------- what an adapter claims


class Feature(StrEnum):
    """Optional features. An adapter claims what its implementation documents; nothing is on by default."""

    OUTPUTS = "outputs"  # run() returns the merged output of the last stage
    MICROBATCH_LOSSES = "microbatch_losses"  # one loss per microbatch, in batch order
    EVAL = "eval"  # run(Mode.EVAL, …): forward only
    INPUT_GRADIENTS = "input_gradients"  # inputs of the first stage that require grad receive it
    ACCUMULATION = "accumulation"  # steps without zero_grad in between add up
    KWARGS = "kwargs"  # keyword arguments beside the positional ones
    KWARG_GRADIENTS = "kwarg_gradients"  # tensors among them that require grad receive it, in their .grad
    LOSS_KWARGS = "loss_kwargs"  # extra keyword arguments for the loss function
    STRUCTURED_OUTPUTS = "structured_outputs"  # the last stage may return a tuple
    MAPPING_OUTPUTS = "mapping_outputs"  # the last stage may return a dict
    TOKENS = "tokens"  # integer inputs (an embedding in the first stage)
    FROZEN = "frozen"  # parameters and whole stages that need no gradient
    UNUSED_PARAMETERS = "unused_parameters"  # parameters that some or all microbatches do not use
    SHARED_IN_STAGE = "shared_in_stage"  # one parameter used twice inside a stage
    BUFFERS = "buffers"  # batch norm and other modules with state
    DROPOUT = "dropout"  # random masks, judged by replaying them
    USER_HOOKS = "user_hooks"  # forward, pre-forward and tensor hooks of the model itself
    UNEVEN_BATCHES = "uneven_batches"  # B is not a multiple of m (split as torch.tensor_split does)
    VARYING_MICROBATCHES = "varying_microbatches"  # m may change between steps, and B with it
    VARYING_SHAPES = "varying_shapes"  # the size of microbatches may change between steps
    OPTIMIZER = "optimizer"  # apply(OptimizerStep)
    STATE = "state"  # state() returns parameters and buffers
    DECLARED_TABLE = "declared_table"  # the pipeline has table(), see DeclaresTable
    CUSTOM_FUNCTIONS = "custom_functions"  # stages may use torch.autograd.Function
    CHECKPOINTING = "checkpointing"  # stages may use torch.utils.checkpoint
    AUTOCAST = "autocast"  # run() may be called under torch.autocast
    OBJECTS = "objects"  # keyword arguments that are no tensors, given whole to every microbatch
    BATCH_DIM = "batch_dim"  # the batch may be dimension 1 of inputs, outputs and targets
    LOADING = "loading"  # apply(LoadState)
    GRADIENT_NORM = "gradient_norm"  # the pipeline has gradient_norm(), see MeasuresGradients
    STAGE_OPERATIONS = "stage_operations"  # the pipeline has open_stages(), see OffersStages
    DEFERRED_WEIGHTS = "deferred_weights"  # weight gradients left to a function, see Plan.deferred_weights


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
    family: str | None = None
    """What pipeconform calls the schedule (`pipeconform.schedule.families()`); None: its order is not judged."""

    def __post_init__(self) -> None:
        """Raise `UnknownNameError` for a family that nobody knows; the message lists the nearest."""
        if self.family is not None:
            from pipeconform.errors import UnknownNameError
            from pipeconform.schedule import families

            known = [family.name for family in families()]
            if self.family not in known:
                raise UnknownNameError("schedule family", self.family, known)

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
    containers: tuple[Literal["tensor", "tuple", "list"], ...] = ("tensor",)
    dtypes: tuple[str, ...] = ("float32",)
    min_ndim: int = 2
    max_ndim: int = 3
    no_grad_tensors: bool = False  # float tensors that need no gradient
    non_float_tensors: bool = False  # integer and bool tensors
    empty_tensors: bool = False  # tensors with a dimension of size 0


@dataclass(frozen=True, kw_only=True)
class TracingClaim:
    """A front end that makes the stages by splitting a whole model; see `Split`."""

    splits: tuple[Literal["annotations", "policy", "points"], ...] = ("annotations", "policy", "points")
    kwargs: Literal["none", "first_stage", "all"] = "none"
    """Where the computations may stand that use a keyword argument of the model."""
    number_kwargs: bool = False  # keyword arguments may be numbers, which change from step to step
    skips: bool = False  # a value used beyond the next stage
    tied: bool = False  # a parameter used by several stages: each of them has the sum of its gradients
    knows_boundaries: bool = False  # the pipeline has boundaries(), see KnowsBoundaries


@dataclass(frozen=True, kw_only=True)
class GradientScale:
    """How a mean-reduced loss is averaged over m microbatches (a sum-reduced loss is never scaled)."""

    at: Literal["loss", "gradient", "none"] = "loss"  # loss / m before backward, or gradient / m after it
    input_gradients_scaled: bool = True


@dataclass(frozen=True, kw_only=True)
class ErrorContract:
    """Kinds of mistakes and the exception type names promised for them; unlisted kinds promise nothing."""

    promises: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an implementation claims, with limits. Cases are drawn inside these limits only."""

    schedules: tuple[ScheduleClaim, ...]
    features: frozenset[Feature] = frozenset()
    boundary: BoundaryClaim = BoundaryClaim()
    scale: GradientScale = GradientScale()
    reductions: tuple[Literal["mean", "sum"], ...] = ("mean",)
    sub_groups: bool = False  # a pipeline group that is not the world
    fresh_process_per_build: bool = False
    patience: float = 2.0
    """Seconds for which all ranks may use no processor time before that is a hang."""
    optimizers: tuple[Literal["sgd", "adam"], ...] = ("sgd", "adam")
    fused_optimizer: bool = False
    """``run(TRAIN)`` steps the optimizer and clears the gradients; see :meth:`Pipeline.apply`."""
    kwargs_scope: Literal["stage", "rank", "pipeline"] = "rank"
    inputs_consumed_by: Literal["first_stage", "all"] = "first_stage"
    targets_consumed_by: Literal["last_stage", "all"] = "last_stage"
    outputs_on: Literal["last_stage", "all"] = "last_stage"
    loss_on: Literal["last_stage", "all"] = "last_stage"
    loss_over: Literal["microbatch", "batch"] = "microbatch"
    """Whether the loss function sees one microbatch's output at a time, or the merged output once."""
    world: Literal["distributed", "single_process"] = "distributed"
    tracing: TracingClaim | None = None
    """A front end that splits a whole model; None: every plan brings its stages."""

    def schedule(self, name: str) -> ScheduleClaim | None:
        """The claim for the schedule called `name`, or None when it is not claimed."""
        return next((claim for claim in self.schedules if claim.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Description:
    """Who an implementation is and what it claims."""

    name: str
    version: str
    capabilities: Capabilities
    errors: ErrorContract = ErrorContract()
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Named environment settings under which it is to be judged besides the default ones."""


# ------------------------------------------------------------------------------- what it is given


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Shape (per microbatch), dtype and gradient flag of one boundary tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    batch_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """What stage `producer` hands to stage `consumer` for one microbatch."""

    producer: int
    consumer: int
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of one microbatch: ``function(output, target, **loss_kwargs) -> 0-d tensor``."""

    function: Callable[..., torch.Tensor]
    reduction: Literal["mean", "sum"]


@dataclass(frozen=True, kw_only=True)
class SgdStep:
    """Plain SGD: ``p -= lr * grad``, with momentum if not zero."""

    lr: float
    momentum: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AdamStep:
    """``torch.optim.Adam`` with its default betas and epsilon."""

    lr: float


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Where this process stands. Ranks inside `pipeline_ranks` are global; `pipeline_rank` counts in them."""

    device: torch.device
    rank: int
    world_size: int
    pipeline_ranks: tuple[int, ...]
    pipeline_rank: int | None
    """This process's position in the pipeline, or None for a bystander."""
    pipeline_group: ProcessGroup | None
    """A group of exactly `pipeline_ranks`, new for every case; None in a single-process world.

    `pipeline_ranks` ascend, so a rank's position in the pipeline is its rank in the group.
    """


@dataclass(frozen=True)
class SplitPoint:
    """A cut before, or after, the call of the submodule with this qualified name."""

    module: str
    after: bool = False


@dataclass(frozen=True, kw_only=True)
class Split:
    """How a front end is to split the whole model into ``len(plan.stages)`` stages.

    The stages' parameters and buffers keep the whole model's qualified names: `Pipeline.gradients` and
    `Pipeline.state` are keyed by them.
    """

    by: Literal["annotations", "policy", "points"]
    annotated: Callable[[Callable[[], None]], nn.Module]
    """``annotated(mark)`` builds the whole model; its forward calls ``mark()`` wherever a stage ends."""
    points: tuple[SplitPoint, ...]
    """For ``points``: one per cut, to be applied to ``plan.model()``."""
    units: tuple[str, ...]
    """For ``policy``: submodules of ``plan.model()`` in the order in which they run, with at most one value
    between two of them that a later one uses. Where to cut is the policy's choice: about equal numbers of
    parameters in every stage."""
    example: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    """Positional and keyword arguments of the whole model for the first microbatch, on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to build, the same on every rank but for `ranks`.

    ``stages[s]()`` builds stage s on the CPU with its initial parameters; any rank can build any
    stage, and two calls give equal modules. ``model()`` builds the whole model, whose forward is
    the composition of the stages.
    """

    stages: tuple[Callable[[], nn.Module], ...]
    model: Callable[[], nn.Module]
    schedule: str
    placement: tuple[frozenset[int], ...]
    """For each stage the *set* of pipeline ranks that own it."""
    loss: Loss
    optimizer: SgdStep | AdamStep | None
    num_microbatches: int
    """m of the first step."""
    microbatch_size: int
    """Samples in the first microbatch of the first step."""
    batch_dim: int
    boundaries: Callable[[], tuple[Boundary, ...]]
    """Computed when called (a dry run on the meta device): most engines do not need it."""
    ranks: Ranks
    trains: bool = True
    """False when the program has no training step."""
    deferred_weights: Callable[[nn.Module], Callable[[], Callable[..., None]] | None] = lambda module: None
    """For a stage's module as built: its deferred-weight builder, or None where autograd does everything.

    The builder is called once after each microbatch's backward through the stage, and returns a function that
    adds the weight gradients which that backward left out. The function runs exactly once: as the weight part,
    or at the end of a full backward. It is what torch's ``PipelineStage`` takes as ``dw_builder``.
    """
    varying_shapes: bool = False
    """Microbatches of other sizes than the first will come, for engines that ask for a setting then."""
    split: Split | None = None
    """If given, the front end makes the stages: `stages` says only how many, and cannot be built."""

    def owned_stages(self) -> tuple[int, ...]:
        """The stages this rank owns, ascending; empty on a bystander."""
        return tuple(s for s, owners in enumerate(self.placement) if self.ranks.pipeline_rank in owners)

    def build_owned(self) -> dict[int, nn.Module]:
        """Build the stages this rank owns, on its device."""
        return {s: self.stages[s]().to(self.ranks.device) for s in self.owned_stages()}

    @property
    def first_rank(self) -> int:
        """The pipeline rank that owns the first stage (the lowest, when several do)."""
        return min(self.placement[0])

    @property
    def last_rank(self) -> int:
        """The pipeline rank that owns the last stage (the lowest, when several do)."""
        return min(self.placement[-1])


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """One microbatch, for engines that want an iterator."""

    args: tuple[Any, ...]
    kwargs: Mapping[int, Mapping[str, Any]]
    target: Any


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The data of one step.

    A rank that neither consumes inputs nor targets gets decoys of the same shape (other values, NaN
    where floating). Tensors in `args`, `kwargs` and `target` carry the batch in `batch_dim`; other
    values in `kwargs` are replicated to every microbatch.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[int, Mapping[str, Any]]
    """Keyword arguments per stage."""
    target: Any
    loss_kwargs: Mapping[str, Any]
    batch_dim: int
    num_microbatches: int
    microbatches: tuple[Microbatch, ...]


class Mode(StrEnum):
    """What one run does."""

    TRAIN = "train"  # forward, loss, backward
    EVAL = "eval"  # forward only, modules in eval mode, no gradient anywhere


@dataclass(frozen=True)
class ZeroGrad:
    """``set_to_none=True``: gradients become None; False: they become zeros."""

    set_to_none: bool = True


@dataclass(frozen=True)
class OptimizerStep:
    """One step of ``plan.optimizer`` on every owned stage."""


@dataclass(frozen=True)
class LoadState:
    """Take over these parameters and buffers, per stage and builder's name; every rank is given all stages'."""

    state: Mapping[int, Mapping[str, torch.Tensor]]


Operation = ZeroGrad | OptimizerStep | LoadState

# ------------------------------------------------------------------------------- what it gives back


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What this rank has after a run; everything optional, gathered from all ranks by the harness."""

    output: Any = None
    """Merged over microbatches, in batch order."""
    losses: Sequence[torch.Tensor] | None = None
    """One 0-d tensor per microbatch, in batch order, before any division by m."""
    loss: torch.Tensor | None = None
    """The mean (or sum) over microbatches, 0-d, for engines that return one number."""
    microbatches: Sequence[int] | None = None
    """The microbatches that output, losses and loss speak of, ascending; None: all of them.

    A two-direction engine finishes one half of a batch on the first rank and the other on the last.
    """
    input_gradients: Sequence[torch.Tensor | None] | None = None
    """Per positional input of the first stage."""


@runtime_checkable
class Pipeline(Protocol):
    """A built pipeline on one rank (a bystander's does nothing)."""

    def owned(self) -> Mapping[int, nn.Module]:
        """Stage index to the live module this rank trains."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Run one step over the batch."""

    def apply(self, operation: Operation) -> None:
        """Carry out a program step that is not a run.

        With a fused optimizer every training run is followed by `OptimizerStep` and `ZeroGrad`, which
        only say what has happened already: the gradients of that run stay readable until `ZeroGrad`.
        """

    def gradients(self) -> Mapping[int, Mapping[str, torch.Tensor | None]]:
        """Per owned stage: builder's parameter name to gradient (None where there is none).

        A stage with several owners has its whole gradient, summed over them, on each.
        """

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        """Per owned stage: builder's parameter and buffer names to values."""

    def close(self) -> None:
        """Free everything; idempotent; the process groups stay usable."""


@runtime_checkable
class MeasuresGradients(Protocol):
    """What a pipeline has besides if `Feature.GRADIENT_NORM` is claimed."""

    def gradient_norm(self) -> torch.Tensor | None:
        """The 2-norm of all gradients of all stages, 0-d, the same on every pipeline rank; collective.

        Asked on every rank after every training step; a bystander returns None.
        """


@runtime_checkable
class DeclaresTable(Protocol):
    """What a pipeline has besides if `Feature.DECLARED_TABLE` is claimed."""

    def table(self) -> str | None:
        """The table of a training step with ``plan.num_microbatches`` microbatches, or None where there is none.

        In torch's compute-only CSV format: one line per pipeline rank, one cell per computation, such as
        ``0F0,0F1,0B0,0B1``; empty cells are idle slots. Every rank may return the whole table; a bystander
        returns None. Asked once, after `Adapter.build`.
        """


class StageOperations(Protocol):
    """One stage of a training step that its user drives microbatch by microbatch.

    For each microbatch, what is in brackets only where the neighbouring stage lives on another rank::

        [receive_forward]  forward  [send_forward]
        [receive_backward]  backward  [send_backward]                          full backward, or
        [receive_backward]  backward(full=False)  [send_backward]  …  backward_weight

    A neighbour on the same rank needs no message: `forward` and `backward` hand over by themselves. A call
    that is not due raises an error that names the microbatch, in words, and changes nothing.
    """

    def receive_forward(self, microbatch: int) -> None:
        """Wait for the input."""

    def forward(self, microbatch: int) -> None:
        """Run the stage on the batch given to `OffersStages.open_stages`; the last one computes the loss."""

    def send_forward(self, microbatch: int) -> None:
        """Start to send the output."""

    def receive_backward(self, microbatch: int) -> None:
        """Wait for the gradient of the output."""

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        """Go back through the stage; ``full=False``: for its inputs only."""

    def backward_weight(self, microbatch: int) -> None:
        """The weight part that ``backward(full=False)`` left."""

    def send_backward(self, microbatch: int) -> None:
        """Start to send the gradient of the input."""

    def finish(self) -> None:
        """End the step: wait for sends, scale gradients as `run` does, forget every microbatch."""


@runtime_checkable
class OffersStages(Protocol):
    """What a pipeline has besides if `Feature.STAGE_OPERATIONS` is claimed."""

    def open_stages(self, batch: Batch) -> Mapping[int, StageOperations]:
        """Begin a training step by hand: per owned stage its operations (a bystander has none).

        Called on every rank, so it may communicate. The step computes what ``run(Mode.TRAIN, batch)`` does.
        """


@runtime_checkable
class KnowsBoundaries(Protocol):
    """What a pipeline has besides if `TracingClaim.knows_boundaries` is claimed."""

    def boundaries(self) -> Sequence[Boundary]:
        """What this rank's stages will hand on, known before the first step; asked right after `build`.

        Shapes are those of the first microbatch; only shape and dtype are judged.
        """


@runtime_checkable
class Adapter(Protocol):
    """An implementation behind the contract."""

    def describe(self) -> Description:
        """Plain data; called in a rank process, must not start anything."""

    def setup_process(self) -> None:
        """Prepare a rank process once (environment, logging, engine-wide initialisation).

        In a distributed world the default process group exists already.
        """

    def build(self, plan: Plan) -> Pipeline:
        """Build on this rank; raise ``Unsupported(reason)`` for a plan outside the claims."""


# ------------------------------------------------------------------------------ helpers for adapters


def placement_of(placement: Placement, *, num_ranks: int, num_stages: int) -> tuple[frozenset[int], ...]:
    """For each stage the set of pipeline ranks that own it.

    Raises:
        ValueError: `num_stages` cannot be laid out that way on `num_ranks` ranks.
    """
    p = num_ranks
    if placement is Placement.SINGLE_PROCESS:
        return (frozenset({0}),) * num_stages
    if num_stages % p:
        raise ValueError(f"{num_stages} stages are not a multiple of {p} ranks")
    if placement is Placement.LOOP:
        return tuple(frozenset({s % p}) for s in range(num_stages))
    if placement is Placement.V:
        return tuple(frozenset({s % p if (s // p) % 2 == 0 else p - 1 - s % p}) for s in range(num_stages))
    return tuple(frozenset({s % p, p - 1 - s % p}) for s in range(num_stages))


def _each(modules: Mapping[int, nn.Module]) -> Iterator[tuple[int, nn.Module]]:
    return iter(sorted(modules.items()))


class Bystander:
    """The pipeline of a rank outside the pipeline group: owns nothing and does nothing."""

    def owned(self) -> dict[int, nn.Module]:
        """No stage."""
        return {}

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        """Return an empty result."""
        return StepResult()

    def apply(self, operation: Operation) -> None:
        """Do nothing."""

    def gradients(self) -> dict[int, dict[str, torch.Tensor | None]]:
        """No stage."""
        return {}

    def state(self) -> dict[int, dict[str, torch.Tensor]]:
        """No stage."""
        return {}

    def close(self) -> None:
        """Nothing to free."""


def module_gradients(modules: Mapping[int, nn.Module]) -> dict[int, dict[str, torch.Tensor | None]]:
    """`gradients()` for an engine that trains the modules it was given in place."""
    return {s: {name: p.grad for name, p in module.named_parameters()} for s, module in _each(modules)}


def module_state(modules: Mapping[int, nn.Module]) -> dict[int, dict[str, torch.Tensor]]:
    """`state()` for an engine that trains the modules it was given in place."""
    return {
        s: {**dict(module.named_parameters()), **dict(module.named_buffers())} for s, module in _each(modules)
    }


def optimizer_of(
    parameters: Iterable[nn.Parameter], spec: SgdStep | AdamStep | None
) -> torch.optim.Optimizer | None:
    """The optimizer of torch over those that require a gradient; None where there is nothing to do."""
    import torch

    trainable = [p for p in dict.fromkeys(parameters) if p.requires_grad]  # one of two stages steps once
    if spec is None or not trainable:
        return None
    if isinstance(spec, SgdStep):
        return torch.optim.SGD(trainable, lr=spec.lr, momentum=spec.momentum)
    return torch.optim.Adam(trainable, lr=spec.lr)


def step_modules(
    modules: Mapping[int, nn.Module], spec: SgdStep | AdamStep | None
) -> Callable[[Operation], None]:
    """`apply()` for an engine that leaves zero_grad, the optimizer and loading to its user.

    Raises (when the returned function is called):
        ValueError: an optimizer step without an optimizer in the plan.
    """
    import torch

    parameters = [p for _, module in _each(modules) for p in module.parameters() if p.requires_grad]
    optimizer = optimizer_of(parameters, spec)

    def apply(operation: Operation) -> None:
        if isinstance(operation, ZeroGrad):
            for _, module in _each(modules):
                module.zero_grad(set_to_none=operation.set_to_none)
        elif isinstance(operation, LoadState):
            with torch.no_grad():
                for s, values in module_state(modules).items():
                    for name, value in values.items():
                        value.copy_(operation.state[s][name])
        elif optimizer is not None:
            optimizer.step()
        elif parameters:
            raise ValueError("the plan has no optimizer, but an optimizer step was asked for")

    return apply
