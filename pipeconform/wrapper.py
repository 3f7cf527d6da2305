"""The contract between pipeconform and a module wrapper that synchronises data-parallel replicas.

A *wrapper adapter* is any object with the methods of :class:`WrapperAdapter`; nothing is subclassed. On every rank
the harness calls, in this order::

    adapter.describe()                      what it is and what it claims (plain data)
    wrapper = adapter.wrap(module, options)
        wrapper.run(*args)                  the forward of the wrapped module
        wrapper.gradients() / .state()      by the names that `module` had before it was wrapped

Every rank has another replica of the module and other data, both on the rank's device, and a process group.
Cases use no option that is not claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pipeconform.claims import Claimable, require_line, require_variant_names
from pipeconform.judged_on import JudgedOn, judged_on
from pipeconform.sharding import Sharding, ShardingClaims

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = [
    "Compression",
    "FloatName",
    "JudgedOn",
    "WrapOptions",
    "Wrapper",
    "WrapperAdapter",
    "WrapperClaims",
    "WrapperDescription",
    "WrapperFeature",
    "judged_on",
]

Compression = Literal["none", "float16", "bfloat16"]
FloatName = Literal["float64", "float32", "float16", "bfloat16"]
"""A dtype by torch's name for it."""


class WrapperFeature(Claimable):
    """Optional features. An adapter claims what its wrapper documents; nothing is on by default."""

    BROADCASTS = "broadcasts", "the first rank's values replace those of all replicas at the beginning"
    VERIFIES = "verifies", "replicas whose parameters have other shapes are refused"
    SEVERAL_DTYPES = "several_dtypes", "parameters of several dtypes in one module"
    IGNORES = "ignores", "parameters and buffers may be left alone, by name"
    NO_SYNC = "no_sync", "forwards and backwards that only add up"
    FORWARD_DECIDES = "forward_decides", "whether a backward synchronises is decided where its forward ran"
    FIND_UNUSED = (
        "find_unused",
        "parameters may go without a gradient, other ones in every step and on every rank",
    )
    STATIC_GRAPH = "static_graph", "parameters may go without a gradient, the same ones in every step"
    NEEDS_ALL = "needs_all", "without these options an unused parameter is an error"
    BUCKETS = "buckets", "the size of buckets may be chosen"
    BUCKET_VIEW = "bucket_view", "gradients may be views of the buckets"
    BROADCASTS_BUFFERS = (
        "broadcasts_buffers",
        "before every forward buffers become the first rank's, unless switched off",
    )
    HOOKS = "hooks", "communication hooks, built-in and the user's"
    JOIN = "join", "ranks may have different numbers of batches"
    TWO_FORWARDS = "two_forwards", "two forwards before one backward"
    CHECKPOINT = "checkpoint", "activation checkpointing, not reentrant"
    REENTRANT = "reentrant", "reentrant activation checkpointing, each parameter used once"
    STRUCTURED = "structured", "outputs may be dicts, dataclasses, nested"
    REFERENCES = "references", "outputs may be remote references to what this rank holds"
    CHANNELS_LAST = "channels_last", "parameters that are not contiguous"
    SPARSE = "sparse", "sparse gradients of embeddings"
    GRADIENT_SCALER = "gradient_scaler", "a scaler that skips a step on all ranks alike"
    MIXED_PRECISION = "mixed_precision", "computes in one dtype, reduces in another, keeps a third"
    BUFFER_DTYPE = "buffer_dtype", "mixed precision may give buffers a dtype of their own"
    DELAYED = "delayed", "named parameters are reduced only when a later gradient is there"
    STEP_IN_BACKWARD = "step_in_backward", "optimizer steps as soon as a gradient is reduced"
    OTHER_GROUP = "other_group", "another process group may take over between steps"
    DOUBLE_BACKWARD = "double_backward", "gradients of gradients in the loss"
    MODIFIED_OUTPUTS = "modified_outputs", "outputs may be modified in place before the loss"
    BUFFER_HOOKS = "buffer_hooks", "a user's function may synchronise buffers, before or after the forward"
    FULL_STATE = "full_state", "a whole state dict, saved and loaded with any number of ranks"
    PICKLED = "pickled", "may be pickled in the default process group, and nowhere else"
    LOGGED = "logged", "reports on itself, at a rate that may be set"
    SHARDS = "shards", "divides parameters, gradients and optimizer states as asked for, see `sharding`"
    OFFLOADS = "offloads", "keeps the shards in the host's memory"
    REFUSES = "refuses", "combinations of these options that it documents as refused"
    DEFERRED = "deferred", "modules may be on the meta device when they are wrapped"
    DEVICES = "devices", "modules and device arguments that do not fit are refused"


@dataclass(frozen=True, kw_only=True)
class WrapOptions:
    """How a module is to be wrapped; None and False leave the wrapper's default."""

    bucket_mib: float | None = None
    find_unused: bool = False
    static_graph: bool = False
    bucket_view: bool = False
    broadcast_buffers: bool = True
    ignored: tuple[str, ...] = ()
    """Names of parameters and buffers that the wrapper leaves to the user."""
    param_dtype: FloatName | None = None
    """The dtype that the forward computes in; inputs are cast, too."""
    reduce_dtype: FloatName | None = None
    buffer_dtype: FloatName | None = None
    delayed: tuple[str, ...] = ()
    """Names of parameters whose reduction waits for the gradient of `delayed_until`."""
    delayed_until: str = ""
    new_group: bool = False
    """Wrap for a new process group of all ranks, not for the default one."""
    device_ids: tuple[int, ...] = ()
    output_device: int | None = None
    sharding: Sharding | None = None
    """How parameters, gradients and optimizer states are divided among the ranks; None: the wrapper's own way."""


@dataclass(frozen=True, kw_only=True)
class WrapperClaims:
    """What a wrapper claims. Cases ask for nothing else."""

    features: frozenset[WrapperFeature] = frozenset()
    sharded: bool = False
    """Whether gradients and state are gathered when read, and gradients are unknown while they only add up."""
    compressions: tuple[Compression, ...] = ("none", "float16", "bfloat16")
    """The built-in communication hooks that run on this machine's device, where `HOOKS` is claimed."""
    elsewhere: Mapping[WrapperFeature, str] = field(default_factory=dict)
    """Features that the wrapper has, but not on this machine, each with the reason; they are never reported as met."""
    sharding: ShardingClaims = field(default_factory=ShardingClaims)
    """The options it offers if `SHARDS` is claimed."""
    max_ranks: int = 4
    patience: float = 2.0
    """Seconds without processor time on any rank after which this is a hang."""


@dataclass(frozen=True, kw_only=True)
class WrapperDescription:
    """Which wrapper it is and what it claims."""

    name: str
    version: str
    claims: WrapperClaims
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Environment variables of further rank processes to judge the wrapper under, by variant."""
    packages: tuple[str, ...] = ()
    """As in `pipeconform.adapter.Description`."""

    def __post_init__(self) -> None:
        """Raise BadAdapterError for a name that cannot be printed or that no variant can have."""
        require_line(self.name, "the wrapper's name")
        require_line(self.version, "the wrapper's version")
        require_variant_names(self.variants)


@runtime_checkable
class Wrapper(Protocol):
    """One wrapped replica. Methods from `no_sync` on are called only where their feature is claimed."""

    def run(self, *args: Any) -> Any:
        """The forward of the wrapped module."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters for an optimizer."""

    def gradients(self) -> Mapping[str, torch.Tensor | None] | None:
        """Whole gradients by name, None for a parameter without one; None if they are not known now."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """Whole parameters and buffers by name."""

    def no_sync(self) -> AbstractContextManager[Any]:
        """A context in which gradients only add up."""

    def join(self, *, divide_by_initial: bool, raise_early: bool) -> AbstractContextManager[Any]:
        """A context around a loop over batches; other ranks may have more or fewer batches."""

    def register_hook(self, state: Any, hook: Any) -> None:
        """Register a communication hook as the wrapper takes it: ``hook(state, bucket) -> Future``."""

    def compression(self, kind: Compression) -> tuple[Any, Callable[..., Any]]:
        """State and hook of a built-in hook: a plain all-reduce, or one in a smaller dtype."""

    def buffer_of(self, bucket: Any) -> torch.Tensor:
        """The flat tensor of gradients in the bucket that a hook was called with."""

    def scaler(self, scale: float) -> Any:
        """A scaler of losses with this first scale, with the interface of ``torch.amp.GradScaler``."""

    def step_in_backward(self, lr: float) -> None:
        """From now on, step every parameter with SGD without momentum inside backward."""

    def change_group(self, group: Any) -> None:
        """Go on in another process group; called on all ranks, also on those that it leaves out."""

    def register_buffer_hook(
        self, hook: Callable[[Mapping[str, torch.Tensor]], None], *, before_forward: bool
    ) -> None:
        """Let ``hook(buffers by name)`` synchronise buffers, in place, before every forward or after it."""

    def full_state(self) -> Mapping[str, torch.Tensor]:
        """The whole state dict by the module's own names, on every rank."""

    def load_full_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load such a state dict; every rank has the whole of it."""

    def materialise(self) -> None:
        """Give memory to a module that was on the meta device when it was wrapped.

        Every submodule with parameters or buffers of its own initialises them with its ``reset_parameters()``. If
        wrapping did that already, there is nothing to do here.
        """

    def pickled(self) -> Wrapper:
        """What comes back from ``pickle.loads(pickle.dumps(...))``."""

    def logged(self) -> Mapping[str, object]:
        """What the wrapper reports on itself, with at least ``world_size``, ``rank`` and ``module_name``."""

    def set_logging_rate(self, rate: int) -> None:
        """Measure once in `rate` steps; `rate` is at least 1."""


@runtime_checkable
class WrapperAdapter(Protocol):
    """The object that `--impl` names."""

    def describe(self) -> WrapperDescription:
        """Name and claims of the wrapper; called in every process, possibly without a process group."""

    def wrap(self, module: nn.Module, options: WrapOptions) -> Wrapper:
        """Wrap this rank's replica; called on all ranks of the default process group.

        Raises:
            pipeconform.errors.Unsupported: the options are not claimed.
        """
