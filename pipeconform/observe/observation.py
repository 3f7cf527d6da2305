"""What one execution showed, as plain data: one `Observation` per rank, one `Reference` from the oracle.

Both cross from their processes as MessagePack; values are `Array`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from pipeconform.observe.array import Array
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.frames import Frame
from pipeconform.ranks.verdict import one_of


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strict and immutable struct."""


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its containers: a leaf has an `array` (or the text of a non-tensor), others have items."""

    kind: Literal["tensor", "tuple", "list", "dict", "other"]
    array: Array | None = None
    text: str = ""
    keys: tuple[str, ...] = ()
    items: tuple[Structure, ...] = ()
    placements: tuple[str, ...] | None = None
    """A `DTensor`'s, in torch's words: `array` is then this rank's part."""
    whole: tuple[int, ...] | None = None
    """The shape that a `DTensor` says its whole has."""

    def __post_init__(self) -> None:
        """Check what a rank sent."""
        if (self.array is not None) != (self.kind == "tensor") or (
            self.kind == "dict" and len(self.keys) != len(self.items)
        ):
            raise ValueError(f"a value of kind {self.kind} with the parts of another")

    @classmethod
    def of(cls, value: Any) -> Structure:
        """Record `value` with its container types."""
        import torch

        if isinstance(value, torch.Tensor):
            placements = getattr(value, "placements", None)
            if placements is None:
                return cls(kind="tensor", array=Array.of(value))
            part: Any = value
            found = Array.of(part.to_local())
            named = tuple(map(str, placements))
            return cls(kind="tensor", array=found, placements=named, whole=tuple(value.shape))
        if isinstance(value, Mapping):
            items = tuple(cls.of(item) for item in value.values())
            return cls(kind="dict", keys=tuple(map(str, value)), items=items)
        if isinstance(value, tuple | list):
            kind: Literal["tuple", "list"] = "tuple" if isinstance(value, tuple) else "list"
            return cls(kind=kind, items=tuple(cls.of(item) for item in value))
        return cls(kind="other", text=repr(value)[:200])

    def leaves(self) -> tuple[Array, ...]:
        """The tensors in order."""
        if self.array is not None:
            return (self.array,)
        return tuple(leaf for item in self.items for leaf in item.leaves())

    def shape(self) -> str:
        """The containers alone, such as ``(tensor, [tensor])``."""
        inner = [item.shape() for item in self.items]
        match self.kind:
            case "tuple":
                return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
            case "list":
                return f"[{', '.join(inner)}]"
            case "dict":
                return "{" + ", ".join(f"{k}: {v}" for k, v in zip(self.keys, inner, strict=True)) + "}"
        return self.kind if self.kind == "tensor" else self.text


Watched = Literal[
    "gradients",
    "loneliness",
    "memory",
    "no outputs",
    "recovery",
    "resumption",
    "reductions",
    "rounds",
    "timeline",
    "traffic",
    "waits",
]
"""What is observed only if a requirement needs it.

``timeline``: the order of all computations. ``memory``: what is kept of a forward when its backward has run
(needs the timeline). ``rounds``: what stays behind after more steps, and after more pipelines (`LivedOn`).
``no outputs``: training steps are asked to return none, where that is claimed (`Feature.OUTPUTS_ON_REQUEST`).
``recovery``: when a mistaken case has ended on all ranks, the same case runs without its mistake, in the same
processes; `Observation.steps` are those of the second run. ``resumption``: when the mistaken step has failed on all
ranks, the same step runs without its mistake on the same pipeline, and is recorded instead. ``loneliness``: a rank that
fails stays connected, so that ranks that wait for it are seen to wait. ``traffic``: everything that is sent and
received. ``reductions``: what is added up over ranks, and when.
``gradients``: what arrives at the outputs of every forward and leaves at its inputs when it is differentiated
(not together with the timeline; no verdict depends on it).
``waits``: like ``traffic``, but only to name what ranks wait for in a hang; memory in flight is left alone.
"""

WAITS_FOR_OTHERS = "waits in the harness until the other ranks have finished"
"""What a rank reports as its action where the harness, and not the implementation, waits for other ranks."""

RESUMED = "once more after the error"
"""What a rank reports as its action while the step that failed runs again (``resumption``)."""

Named = dict[str, Array | None]
"""Per parameter or buffer name its value, or None where there is none."""


class Forward(_Data, frozen=True, kw_only=True):
    """A call of a stage's forward."""

    stage: int
    grad_enabled: bool
    training: bool = True
    """Whether any module of the stage was in training mode."""
    requires_grad: tuple[bool, ...] = ()
    """Per positional input."""
    inputs: tuple[Structure, ...]
    output: Structure
    masks: tuple[Array, ...] = ()
    call: int = -1
    """The number of the call, which its `Event`s or `Flow`s carry too; −1 if neither is observed."""
    in_backward: bool = False
    """Whether it ran inside of a backward, as what a checkpoint computes again."""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A stage's computation: a forward begins (F), or a gradient passes (I: an input's, W: a parameter's)."""

    kind: Literal["F", "I", "W"]
    stage: int
    call: int
    """The forward whose graph it belongs to; numbered per rank, from 0, over all steps."""
    task: int
    """The backward pass (autograd's graph task) in which it happened, −1 outside of any."""
    seconds: float
    """On this rank's monotonic clock."""
    parts: str = ""
    """For an F, the parts of a backward that can come: ``IW``, ``I``, ``W`` or none."""


class Flow(msgspec.Struct, frozen=True, array_like=True):
    """What passed an edge of a stage for one of its forwards."""

    stage: int
    call: int
    """On a rank the forward's `Forward.call`, in the oracle the microbatch."""
    kind: Literal["input", "output", "input gradient", "output gradient"]
    """Ranks record gradients only: the values are in `Forward`."""
    position: int
    """The position among the tensors of the stage's inputs, or outputs."""
    value: Array
    bound: Array | None = None
    """How far two correct evaluations may be apart, elementwise; only from the oracle, if asked for."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """Saved tensors of a forward that are still alive although its backward has run, or the step has ended."""

    call: int
    """The forward that saved them, numbered as in `Event`."""
    before: int
    """The forward before which they were counted, −1 for the end of the step."""
    tensors: int


class Kept(_Data, frozen=True, kw_only=True):
    """What one rank kept alive of the forwards of a step."""

    at_once: int
    """The most forwards of which saved tensors were alive at a time."""
    inputs: int
    """The forwards of which an input is alive at the end of the step; those of stage 0 belong to the caller."""
    outputs: tuple[int, ...]
    """The stage of every forward of which an output, or its graph, is alive at the end of the step."""
    holds_input: str = ""
    """What keeps the first of those inputs alive, as an expression; empty if there is none or nothing is found."""
    holds_output: str = ""
    """What keeps the first of those outputs alive."""
    holds_graph: str = ""
    """What keeps the graph of the first forward alive of which saved tensors are (`StepShown.held`)."""


WARM_UP, NUM_ROUNDS = 2, 10
"""The numbers of steps, or pipelines, after which a census is taken: when one-time objects exist, and at the end."""


class Census(_Data, frozen=True, kw_only=True):
    """How many things of a kind a process holds."""

    tensors: int
    threads: int
    descriptors: int
    groups: int


class LivedOn(_Data, frozen=True, kw_only=True):
    """What more steps, closing, and more pipelines left behind on one rank."""

    steps: tuple[Census, ...]
    """After `WARM_UP` more steps and after `NUM_ROUNDS`."""
    rounds: tuple[Census, ...]
    """After building, running and closing as many pipelines; empty if a process can build only one."""
    closing_error: str | None
    """What the second close() of one pipeline raised."""
    group_works: bool
    """Whether the pipeline's group computed a right sum after close()."""


class Sharding(_Data, frozen=True, kw_only=True):
    """How a tensor is cut over a mesh of ranks; the value recorded with it is one rank's part."""

    placements: tuple[str, ...]
    """torch's placements, per axis of the mesh."""
    mesh: tuple[int, ...]
    dim: int | None
    """The tensor's dimension that is cut over the mesh's first axis; None if none is."""
    index: int
    """This rank's place on that axis."""
    shape: tuple[int, ...]
    """The shape of the whole."""
    cuts: tuple[tuple[int, int, int], ...] = ()
    """The cuts, one after the other: the tensor's dimension, the number of parts, and which of them this rank has."""
    partial: bool = False
    """Whether the value is the sum over the ranks of an axis."""


class Reduction(msgspec.Struct, frozen=True, array_like=True):
    """An operation that adds up or averages floating-point values over ranks."""

    name: str
    """torch's operator: ``allreduce_``, ``_reduce_scatter_base_``, …"""
    stage: int
    """The stage whose data-parallel group it was on; −1 for any other group."""
    elements: int
    """How many values each rank gave."""
    events: int
    """How many of the step's `Event`s had been seen when it was issued; −1 without a timeline."""
    alike: bool = False
    """Whether the group was not the given one, but has the same ranks; `stage` is then the rank's first."""


class Answered(_Data, frozen=True, kw_only=True):
    """A stage's answer to a call that was not due."""

    stage: int
    microbatch: int
    call: str
    """What was called, and why it was not due, in words."""
    error: str | None = None
    """The error's text with its causes'; None if there was none."""


class StepShown(_Data, frozen=True, kw_only=True):
    """What one rank had after one step of the program."""

    step: int
    output: Structure | None = None
    microbatches: tuple[int, ...] | None = None
    """The microbatches that `output` and `losses` belong to; None means all."""
    losses: tuple[Array, ...] | None = None
    loss: Array | None = None
    input_gradients: tuple[Array | None, ...] | None = None
    kwarg_gradients: dict[int, Named] = {}
    """Per owned stage, the gradients of the tensors among its keyword arguments that require one."""
    gradients: dict[int, Named] = {}
    buffers: dict[int, Named] = {}
    parameters: dict[int, Named] = {}
    forwards: tuple[Forward, ...] = ()
    events: tuple[Event, ...] | None = None
    """In the order in which they happened; None if the timeline is not observed."""
    held: tuple[Held, ...] | None = None
    """None if memory is not observed."""
    kept: Kept | None = None
    """None if memory is not observed."""
    flow: tuple[Flow, ...] | None = None
    """The gradients that passed, in this order; None if they are not observed."""
    answers: tuple[Answered, ...] = ()
    hook_counts: dict[int, dict[str, int]] = {}
    rng_moved: bool = False
    gradient_norm: Array | None = None
    """The implementation's answer; None if it was not asked or gave none."""
    loss_scale: float | None = None
    """The implementation's factor of the next step's losses; None if it was not asked or gave none."""
    differentiable: bool = False
    """Whether any returned output or loss requires a gradient."""
    gradient_shards: dict[int, dict[str, Sharding]] = {}
    """Per owned stage, how the gradients are cut of which this rank has a part: `gradients` holds that part."""
    parameter_shards: dict[int, dict[str, Sharding]] = {}
    """The same for parameters."""
    reductions: tuple[Reduction, ...] | None = None
    """In the order in which they were issued; None if they are not observed."""
    hooked: dict[int, int] = {}
    """Per stage, how many elements the communication hook got."""
    begun: dict[int, int] = {}
    """Per stage, how often this rank began to compute it, forwards in the backward included."""


class Known(_Data, frozen=True, kw_only=True):
    """What the implementation says beforehand that a stage will hand on: shape and dtype of every tensor."""

    producer: int
    consumer: int
    tensors: tuple[tuple[tuple[int, ...], str], ...]


class Failed(_Data, frozen=True, kw_only=True):
    """How one rank ended in a case in which something is done wrong on purpose."""

    type: str
    """The exception's qualified name, builtins without their module."""
    message: str
    causes: tuple[tuple[str, str], ...] = ()
    """Types and messages, from the direct cause to the root."""
    step: int | None = None
    """The program's step in which it was raised; None: while the pipeline was built."""
    frames: tuple[Frame, ...] = ()
    """From the first call outside the harness to the line that raised the root cause."""
    earlier: bool = False
    """Whether it, or one of its causes, was raised in an earlier case of the same process: the engine kept it."""
    bases: tuple[str, ...] = ()
    """The names of its base classes, as in `Raised`."""

    def is_one_of(self, names: Iterable[str]) -> bool:
        """Whether it is an exception of one of these types; see `pipeconform.ranks.verdict.one_of`."""
        return one_of(self.type, *self.bases, names=names)

    @property
    def text(self) -> str:
        """The message and those of all causes, a line each."""
        return "\n".join([self.message, *(message for _, message in self.causes)])


class Observation(_Data, frozen=True, kw_only=True):
    """What one rank showed."""

    rank: int
    pipeline_rank: int | None
    unsupported: str | None = None
    build_changes: tuple[str, ...] = ()
    """What building changed that it must not, in words."""
    table: str | None = None
    """The schedule that the implementation says it runs, as CSV; None if it was not asked or gave none."""
    keys: dict[int, tuple[str, ...]] = {}
    """Per owned stage that a front end made, the keys of its state dict."""
    boundaries: tuple[Known, ...] | None = None
    """None if the implementation was not asked."""
    lived_on: LivedOn | None = None
    """None if it was not observed."""
    traffic: Traffic | None = None
    """None if it was not observed."""
    steps: tuple[StepShown, ...] = ()
    failed: Failed | None = None
    """What ended a mistaken case; `steps` are those before it, and the forwards of the step in which it happened."""
    lasting: bool = False
    """Whether a case that may go wrong used groups that outlive it, in which unreceived messages still wait."""


class StepExpected(_Data, frozen=True, kw_only=True):
    """The right results of one step of the program, for one replica."""

    step: int
    outputs: tuple[Structure, ...] = ()
    """Per microbatch."""
    losses: tuple[Array, ...] = ()
    """Per microbatch, unscaled."""
    inputs: tuple[tuple[tuple[Structure, ...], ...], ...] = ()
    """Per stage, per microbatch: the positional inputs."""
    input_gradients: tuple[Array | None, ...] = ()
    kwarg_gradients: dict[int, Named] = {}
    gradients: dict[int, Named] = {}
    buffers: dict[int, Named] = {}
    parameters: dict[int, Named] = {}
    hook_counts: dict[int, dict[str, int]] = {}
    gradient_bounds: dict[int, Named] = {}
    """Elementwise bounds on the difference of two correct evaluations; set only if asked for."""
    parameter_bounds: dict[int, Named] = {}
    loss_bounds: tuple[Array, ...] = ()
    input_gradient_bounds: tuple[Array | None, ...] = ()
    output_bounds: tuple[tuple[Array, ...], ...] = ()
    """Per microbatch, the gradients of the tensors in its output."""
    kwarg_gradient_bounds: dict[int, Named] = {}
    buffer_bounds: dict[int, Named] = {}
    flow: tuple[Flow, ...] = ()
    """What passes between stages, in both directions; set only if asked for."""
    loss_scale: float | None = None
    """The factor of the next step's losses, if they are scaled."""


class Reference(_Data, frozen=True, kw_only=True):
    """The oracle's results: the full model, without any pipeline, over the same microbatches."""

    steps: tuple[StepExpected, ...]
    others: tuple[tuple[StepExpected, ...], ...] = ()
    """The steps of replicas 1, 2, …; `steps` are those of replica 0. Gradients are the mean over all."""
    failed: str | None = None
    """What the model itself raised in a mistaken case; `steps` are those before it."""


def named(values: Mapping[str, Any]) -> Named:
    """Record named tensors."""
    return {name: None if value is None else Array.of(value) for name, value in values.items()}


def arrays(values: Sequence[Any]) -> tuple[Array | None, ...]:
    """Record a sequence of tensors, None where there is none."""
    return tuple(None if value is None else Array.of(value) for value in values)
