"""The plan: what an adapter is to build."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pipeconform.contract.placing import placed
from pipeconform.contract.rules import MergeRule, SplitRule
from pipeconform.contract.tensor import TensorParallel

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "AdamStep",
    "Boundary",
    "Clipping",
    "DataParallel",
    "Declared",
    "Loss",
    "LossScaling",
    "Plan",
    "Ranks",
    "SgdStep",
    "Split",
    "SplitPoint",
    "TensorSpec",
]


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
class Declared:
    """What the user declares that a stage takes and gives for one microbatch, before anything has run."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of one microbatch: ``function(output, target, **loss_kwargs) -> 0-d tensor``.

    Where `Feature.LOSS_PARAMETERS` is claimed, it may use parameters of the module that was built last for the last
    stage on this rank; their gradients are part of a training step like all others.
    """

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
class Clipping:
    """What an optimizer step does to the gradients first: what ``torch.nn.utils.clip_grad_norm_`` does to the model's.

    Every gradient of every stage is multiplied by ``max_norm / (norm + 1e-6)`` if that is less than 1. The norm is that
    of all of them together, a parameter that occurs several times counted once. With master weights it is the copies'
    gradients that are clipped, and with a scaled loss those that are divided by the scale.
    """

    max_norm: float
    norm_type: float = 2.0
    """2 or infinity."""


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """How the loss is scaled, as ``torch.amp.GradScaler`` scales that of a model in one piece.

    Losses are multiplied by the scale before the backward, and gradients are divided by it before the optimizer uses
    them (Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, section 3.2). If any gradient of any stage is
    not finite, no rank steps, and every rank multiplies its scale by `backoff`. A scale does not grow within a case.
    """

    initial: float
    backoff: float


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process's place. Ranks inside `pipeline_ranks` are global; `pipeline_rank` counts within them."""

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
    tensor_rank: int = 0
    """Which part of its stages this rank has, if stages are cut over ranks."""
    num_tensor_ranks: int = 1
    mesh: DeviceMesh | None = None
    """If stages are cut over ranks: the ranks that have this rank's stages. The last axis is that of their parts; the
    first, if there are two, that of the replicas. Axes have the same names on all ranks, and other names in every
    case."""


@dataclass(frozen=True, kw_only=True)
class DataParallel:
    """How the replicas of every stage are synchronised; options that are not claimed are not set.

    `pipeconform.stage_wrapping.wrapped` wraps a stage in torch's wrappers accordingly, for engines that leave this to
    their users. Every replica keeps its own buffers.
    """

    wrapper: Literal["ddp", "fully_shard"] = "ddp"
    bucket_views: bool = False
    """``gradient_as_bucket_view`` of ``DistributedDataParallel``; the next two are its options, too."""
    static_graph: bool = False
    find_unused: bool = False
    hook: Callable[..., torch.futures.Future[torch.Tensor]] | None = None
    """``hook((stage, group), bucket)``, to be registered as the communication hook of ``DistributedDataParallel``."""
    nested: bool = False
    """``fully_shard`` is applied to every child of the stage's ``blocks``, then to the stage."""
    mixed_precision: bool = False
    """``fully_shard`` gets ``MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)``: stages of
    float32 parameters take and return bfloat16, and gradients are added up and reduced in float32."""


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
    """``annotated(mark)`` builds the whole model; its forward, or a submodule's, calls ``mark()`` wherever a stage
    ends."""
    points: tuple[SplitPoint, ...]
    """For ``points``: one per cut, to be applied to ``plan.model()``."""
    units: tuple[str, ...]
    """For ``policy``: submodules of ``plan.model()`` in the order in which they run, with at most one value
    between two of them that a later one uses. The policy chooses where to cut: about equal numbers of
    parameters in every stage."""
    example: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    """Positional and keyword arguments of the whole model, as the first microbatch has them, on the CPU. Tensors have
    the first microbatch's values on a rank that owns the first stage, and other values elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to build, the same on every rank except for `ranks`.

    ``stages[s]()`` builds stage s on the CPU; two calls on a rank give equal modules. Any rank can build any
    stage, but only a rank that owns it gets its initial parameters and buffers. On other ranks the module has
    the same structure, names, shapes, dtypes and flags, but other finite values: it is good for finding out shapes,
    not for computing what another rank computes. ``model()`` builds the whole model, whose forward is the
    composition of the stages; its parts of other ranks' stages have other values, too, unless a front end
    decides by itself where it cuts (`Split.by` ``policy``).
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
    example: Callable[[], tuple[Any, ...]] = tuple
    """Positional arguments of the first stage, as the first microbatch has them, on the CPU, for engines that follow a
    forward in advance. They have the first microbatch's values on a rank that owns the first stage, and other values
    elsewhere."""
    deferred_weights: Callable[[nn.Module], Callable[[], Callable[..., None]] | None] = lambda module: None
    """Returns the deferred-weight builder for a stage's module as built, or None if autograd computes everything.

    The builder is called once after each microbatch's backward through the stage, and returns a function that
    adds the weight gradients which that backward left out. Run the function exactly once: as the weight part,
    or at the end of a full backward. torch's ``PipelineStage`` takes the builder as ``dw_builder``.
    """
    kwarg_rules: Mapping[int, Mapping[str, SplitRule]] = field(default_factory=dict)
    """Per stage and name, how a keyword argument is split into microbatches if not as usual: a tensor along
    `batch_dim`, everything else whole. The same in every batch. Rules belong to names: they may be in another order
    than the values."""
    output_rules: tuple[MergeRule | None, ...] = ()
    """Per tensor that the last stage returns, in order, how the microbatches' values are merged if not as usual (None):
    along `batch_dim`. Empty: all are merged as usual."""
    tied: tuple[Mapping[int, str], ...] = ()
    """Parameters that several stages share: for each, its name in every stage that has it. Stages are built with copies
    of equal values on the ranks that own them. After a training step every holder's gradient is the sum of all; an
    optimizer moves all of them alike. Empty unless `Feature.SHARED_ACROSS_STAGES` or ``_RANKS`` is claimed."""
    clipping: Clipping | None = None
    """If given, every optimizer step clips the gradients first; None unless `Feature.CLIPPING` is claimed."""
    master_weights: bool = False
    """Whether the optimizer keeps a float32 copy of every parameter, steps it with the gradient in float32, and rounds
    it into the parameter. `LoadState` sets the copies, too. False unless `Feature.MASTER_WEIGHTS` or ``LOSS_SCALING``
    is claimed."""
    loss_scaling: LossScaling | None = None
    """If given, there are master weights, or float32 parameters under `autocast`, and `Pipeline.gradients` may still be
    scaled. None unless `Feature.LOSS_SCALING` or ``SCALED_AUTOCAST`` is claimed."""
    autocast: torch.dtype | None = None
    """If given, every ``Pipeline.run`` is called under ``torch.autocast`` of this dtype, which is bfloat16, or float16
    with a scaled loss. Engines that enter autocast themselves need it in their configuration. None unless
    `Feature.AUTOCAST` or ``SCALED_AUTOCAST`` is claimed."""
    float32_sums: bool = False
    """Whether gradients of bfloat16 parameters are added up in float32, over microbatches, steps and replicas, and
    `Pipeline.gradients` returns float32. False unless `Feature.FLOAT32_SUMS` is claimed."""
    table: str | None = None
    """If given, the order in which ranks compute in a training step, in the place of the schedule's own: CSV as
    `DeclaresTable.table` returns it, one line per pipeline rank. Placement and kinds of computations are the
    schedule's. None unless `Feature.TABLES` is claimed."""
    rewritten: bool = False
    """Whether the engine writes what its ranks will do in a training step to a file, with all that it has added, such
    as messages, reads it again, and does what it read. False unless `Feature.WRITTEN_TABLES` is claimed."""
    late_receives: bool = False
    """Whether receives are posted as late as possible instead of as early as possible. False unless
    `Feature.LATE_RECEIVES` is claimed."""
    second_schedule: bool = False
    """Whether evaluations are run by a second schedule, which is made without a loss around the same stage objects as
    the training schedule. They return outputs only. False unless `Feature.SECOND_SCHEDULE` is claimed."""
    recompute: bool = False
    """Whether the engine keeps no activations of a stage but what goes in, and computes the stage again in the
    backward, of all microbatches where it can choose. Values, gradients and random numbers are those without; hooks and
    buffers of the model are not looked at. False unless `Feature.RECOMPUTATION` is claimed."""
    varying_shapes: bool = False
    """Microbatches of other sizes than the first will come, for engines that need a setting for that."""
    declared: Mapping[int, Declared] | None = None
    """The boundaries of each stage that this rank owns, for engines that can use them; usually None: the user declares
    none.

    Given in some plans if `Feature.DECLARED_BOUNDARIES` is claimed, and then not always right. Of examples that the
    user makes with `torch.empty`, none requires a gradient: what needs one is the model's business.
    """
    data_parallel: DataParallel | None = None
    """If given, there are ``ranks.num_replicas`` copies of the pipeline, whose gradients are to be averaged."""
    tensor_parallel: TensorParallel | None = None
    """If given, every stage is cut over ``ranks.num_tensor_ranks`` ranks, or hands over tensors that are."""
    split: Split | None = None
    """If given, the front end makes the stages: `stages` has only their number, and cannot be built."""

    def owned_stages(self) -> tuple[int, ...]:
        """The stages this rank owns, ascending; empty on a bystander."""
        return tuple(s for s, owners in enumerate(self.placement) if self.ranks.pipeline_rank in owners)

    def build_owned(self) -> dict[int, nn.Module]:
        """Build the stages this rank owns, on its device."""
        return {s: placed(self.stages[s](), self.ranks.device) for s in self.owned_stages()}

    @property
    def first_rank(self) -> int:
        """The pipeline rank that owns the first stage (the lowest, when several do)."""
        return min(self.placement[0])

    @property
    def last_rank(self) -> int:
        """The pipeline rank that owns the last stage (the lowest, when several do)."""
        return min(self.placement[-1])
