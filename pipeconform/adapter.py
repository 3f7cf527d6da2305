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

from pipeconform.claims import (
    BoundaryClaim,
    Capabilities,
    DataParallelClaim,
    Description,
    ErrorContract,
    Feature,
    GradientScale,
    MicrobatchRule,
    MistakeKind,
    Placement,
    ScheduleClaim,
    TracingClaim,
)

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup

__all__ = [
    "AdamStep",
    "Adapter",
    "Along",
    "Batch",
    "Boundary",
    "BoundaryClaim",
    "Bystander",
    "Capabilities",
    "CustomSplit",
    "DataParallel",
    "DataParallelClaim",
    "Declared",
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
    "MistakeKind",
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
    "SplitRule",
    "StageOperations",
    "StepResult",
    "TensorSpec",
    "TracingClaim",
    "Whole",
    "ZeroGrad",
    "laid_out",
    "module_gradients",
    "module_state",
    "optimizer_of",
    "placement_of",
    "step_modules",
]

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


@dataclass(frozen=True)
class Along:
    """A tensor is split in dimension `dim`, which has as many entries as the batch has samples."""

    dim: int


@dataclass(frozen=True)
class Whole:
    """Every microbatch is given the value as it is, also if it is a tensor."""


@dataclass(frozen=True)
class CustomSplit:
    """``function(value, sizes)`` returns one part per microbatch; `sizes` are their numbers of samples."""

    function: Callable[[Any, Sequence[int]], Sequence[Any]]


SplitRule = Along | Whole | CustomSplit


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the user says that a stage takes and gives for one microbatch, before anything has run."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


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
    replica: int = 0
    """Which copy of the pipeline this rank belongs to; each gets data of its own."""
    num_replicas: int = 1
    replica_groups: Mapping[int, ProcessGroup] = field(default_factory=dict)
    """Per owned stage a group of the ranks that own it in all replicas, in the order of the replicas."""


@dataclass(frozen=True, kw_only=True)
class DataParallel:
    """How the replicas of every stage are kept in step; options that are not claimed are not set.

    `pipeconform.stage_wrapping.wrapped` wraps a stage in torch's wrappers like this, for engines that leave it to
    their user. Buffers are every replica's own.
    """

    wrapper: Literal["ddp", "fully_shard"] = "ddp"
    bucket_views: bool = False
    """``gradient_as_bucket_view`` of ``DistributedDataParallel``, as are the next two."""
    static_graph: bool = False
    find_unused: bool = False
    hook: Callable[..., torch.futures.Future[torch.Tensor]] | None = None
    """``hook((stage, group), bucket)``, to be registered as the communication hook of ``DistributedDataParallel``."""
    nested: bool = False
    """``fully_shard`` is applied to every child of the stage's ``blocks``, then to the stage."""


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
    kwarg_rules: Mapping[int, Mapping[str, SplitRule]] = field(default_factory=dict)
    """Per stage and name, how a keyword argument becomes microbatches where that is not as usual: a tensor along
    `batch_dim`, everything else whole. The same in every batch."""
    tied: tuple[Mapping[int, str], ...] = ()
    """Parameters that several stages hold: of each, by stage, the name it has there. Stages are built with one of
    their own, of equal values. After a training step every holder's gradient is the sum of all; an optimizer moves
    each of them, and all alike. Never empty only where `Feature.SHARED_ACROSS_STAGES` or ``_RANKS`` is claimed."""
    varying_shapes: bool = False
    """Microbatches of other sizes than the first will come, for engines that ask for a setting then."""
    declared: Mapping[int, Declared] | None = None
    """Of each stage that this rank owns, for engines that can be told; None, as mostly: the user says nothing.

    Given with some plans only where `Feature.DECLARED_BOUNDARIES` is claimed, and then not always right.
    """
    data_parallel: DataParallel | None = None
    """If given, there are ``ranks.num_replicas`` copies of the pipeline, whose gradients are to be averaged."""
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
    values in `kwargs` are replicated to every microbatch. `kwarg_rules` names the keyword arguments that
    are split otherwise.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[int, Mapping[str, Any]]
    """Keyword arguments per stage."""
    target: Any
    loss_kwargs: Mapping[str, Any]
    batch_dim: int
    num_microbatches: int
    microbatches: tuple[Microbatch, ...]
    kwarg_rules: Mapping[int, Mapping[str, SplitRule]] = field(default_factory=dict)
    """Those of the plan."""


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
    if placement is not Placement.SINGLE_PROCESS and num_stages % num_ranks:
        raise ValueError(f"{num_stages} stages are not a multiple of {num_ranks} ranks")
    return laid_out(placement, num_ranks=num_ranks, num_stages=num_stages)


def laid_out(placement: Placement, *, num_ranks: int, num_stages: int) -> tuple[frozenset[int], ...]:
    """As `placement_of`, for any number of stages: the last round may be incomplete."""
    p = num_ranks
    if placement is Placement.SINGLE_PROCESS:
        return (frozenset({0}),) * num_stages
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

    # a parameter that two stages hold is one
    held = dict.fromkeys(p for _, module in _each(modules) for p in module.parameters())
    parameters = [p for p in held if p.requires_grad]
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
