"""A wrapper case: a module, its replicas with different data, options and steps, as immutable data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal

import msgspec
from msgspec import structs

from pipeconform.case import limits
from pipeconform.case.strict import Strict, defaults_of
from pipeconform.errors import BadCaseError
from pipeconform.reading import decoded_json
from pipeconform.wrapper import WrapOptions

__all__ = [
    "Deferred",
    "Form",
    "HookKind",
    "Pass",
    "Regroup",
    "Slow",
    "Special",
    "Step",
    "Uneven",
    "WrapperCase",
    "decode_case",
]

ModuleKind = Literal[
    "plain",
    "dtypes",
    "shared",
    "frozen",
    "ignored",
    "towers",
    "normed",
    "assigned",
    "conv",
    "sparse",
    "checkpoint",
    "reentrant",
    "checkpoint_unused",
    "reentrant_unused",
    "mixed",
    "probed",
    "single",
    "two_devices",
    "blocks",
    "few",
    "partly",
    "apart",
    "experts",
]
Form = Literal["tensor", "tuple", "dict", "dataclass", "nested", "reference"]
"""What a forward returns; a ``reference`` is a `torch.distributed.rpc.RRef` to a value on the rank itself."""
HookKind = Literal[
    "", "none", "float16", "bfloat16", "user", "not_callable", "one_argument", "annotated", "second"
]

Slow = Literal["", "loss", "reduction", "gathering", "freeing"]

Deferred = Literal["", "after", "never"]

Special = Literal[
    "",
    "scaled",
    "in_backward",
    "penalty",
    "modified",
    "buffers_before",
    "buffers_after",
    "saved",
    "loaded",
    "pickled",
    "logged",
    "logged_wrongly",
]
"""What happens besides plain training: scaled losses, optimizer steps in backward, a loss that contains gradients,
outputs modified in place, a user's hook for buffers, saving or loading a state, pickling after the first step, or
logging."""


class Pass(Strict, frozen=True, kw_only=True):
    """One backward of one or more forwards.

    `sync` places the pass outside ``no_sync``, inside it, inside two nested ones, or with one of its halves inside.
    """

    sync: Literal["yes", "no", "nested", "forward_inside", "backward_inside"] = "yes"
    uses: tuple[str, ...] = ()
    """The towers that each rank's forward runs, for a module with towers; empty for all, ``-`` for no parameter."""
    forwards: int = 1

    @property
    def synchronises(self) -> bool:
        """Whether its gradients are reduced, which depends on where its forward ran."""
        return self.sync in ("yes", "backward_inside")


class Step(Strict, frozen=True, kw_only=True):
    """Clear the gradients, run the passes, take an optimizer step."""

    passes: tuple[Pass, ...] = (Pass(),)
    zero: Literal["none", "zeros", "keep"] = "none"
    overflow: int | None = None
    """The rank on which one element of a gradient is infinite; needs scaled losses."""
    late: int | None = None
    """A rank that starts its backward later than the others."""


class Uneven(Strict, frozen=True, kw_only=True):
    """The number of steps that each rank runs inside ``join``."""

    steps: tuple[int, ...]
    divide_by_initial: bool = True
    raise_early: bool = False


class Regroup(Strict, frozen=True, kw_only=True):
    """Before `step`, a new process group of `ranks` takes over; other ranks stop."""

    step: int
    ranks: tuple[int, ...]


class WrapperCase(Strict, frozen=True, kw_only=True):
    """Everything on which one execution of a wrapper depends."""

    module: ModuleKind = "plain"
    form: Form = "tensor"
    ranks: int = 2
    options: WrapOptions = WrapOptions()
    steps: tuple[Step, ...] = (Step(), Step())
    own_values: bool = False
    """Every rank begins with values of its own."""
    own_shape: bool = False
    """The last rank's first parameter has another shape."""
    hook: HookKind = ""
    uneven: Uneven | None = None
    special: Special = ""
    regroup: Regroup | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    compiled: bool = False
    """The computing parts of the module are compiled."""
    slow: Slow = ""
    """Where the last rank is late."""
    deferred: Deferred = ""
    """The module is on the meta device when it is wrapped, and is materialised afterwards or never."""
    loaded_by: int = 0
    """The number of ranks of a second world, which loads what the first saved and continues; 0 for no second world."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible combinations."""
        if self.ranks < 1 or not self.steps or any(not step.passes for step in self.steps):
            raise BadCaseError("a wrapper case has at least one rank, one step and a pass in every step")
        if self.uneven is not None and len(self.uneven.steps) != self.ranks:
            raise BadCaseError(f"uneven.steps has {len(self.uneven.steps)} entries for {self.ranks} ranks")
        uses = [one.uses for step in self.steps for one in step.passes if one.uses]
        if any(len(one) != self.ranks for one in uses) or (uses and self.module != "towers"):
            raise BadCaseError("Pass.uses needs the module 'towers' and one entry for every rank")
        if self.regroup is not None and not set(self.regroup.ranks) <= set(range(self.ranks)):
            raise BadCaseError(f"regroup.ranks {self.regroup.ranks} are not all below {self.ranks}")
        sharding = self.options.sharding
        if sharding is not None and sharding.expert_groups:
            every = sorted(rank for group in sharding.expert_groups for rank in group)
            if every != list(range(self.ranks)):
                raise BadCaseError(
                    f"expert_groups {sharding.expert_groups} do not name each of {self.ranks} ranks once"
                )
        if self.loaded_by < 0 or (self.loaded_by and self.special):
            raise BadCaseError(
                f"loaded_by {self.loaded_by} must be at least 0, and 0 if special ({self.special!r}) is set"
            )
        overflows = any(step.overflow is not None for step in self.steps)
        if overflows and (self.special, self.module) != ("scaled", "probed"):
            raise BadCaseError("Step.overflow needs special 'scaled' and the module 'probed'")

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The sizes of the worlds in which the case runs, one after the other."""
        return (self.ranks, self.loaded_by) if self.loaded_by else (self.ranks,)

    @property
    def saving(self) -> WrapperCase:
        """The case of the first world, which saves."""
        return structs.replace(self, loaded_by=0, special="saved")

    @property
    def loading(self) -> WrapperCase:
        """The case of the second world, which loads: its module, data and number of ranks differ."""
        return structs.replace(self, loaded_by=0, ranks=self.loaded_by, seed=self.seed + 1)

    @property
    def num_ranks(self) -> int:
        """The number of ranks, which equals the number of replicas."""
        return self.ranks

    @property
    def stages_per_rank(self) -> int:
        """Always 1: every rank has a whole replica."""
        return 1

    def num_steps(self, rank: int) -> int:
        """The number of steps that a rank runs."""
        if self.regroup is not None and rank not in self.regroup.ranks:
            return self.regroup.step
        return len(self.steps) if self.uneven is None else self.uneven.steps[rank]

    def present(self, step: int) -> tuple[int, ...]:
        """The ranks that run a step."""
        return tuple(rank for rank in range(self.ranks) if step < self.num_steps(rank))

    def too_large(self) -> Iterator[str]:
        """Yield what is too large to run in reasonable time; drawn cases never are."""
        return limits.too_large_wrapper(
            ranks=self.ranks,
            loaded_by=self.loaded_by,
            steps=len(self.steps),
            passes=max((len(step.passes) for step in self.steps), default=0),
            forwards=max((one.forwards for step in self.steps for one in step.passes), default=0),
            seed=self.seed,
        )

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits, equal for equal cases on every machine."""
        return hashlib.sha256(msgspec.json.encode(_unusual(self), order="sorted")).hexdigest()[:12]


def _unusual(value: Any) -> Any:
    """The fields that differ from their defaults by value; msgspec itself compares defaults by identity."""
    if isinstance(value, tuple):
        return [_unusual(one) for one in value]
    if isinstance(value, Strict):
        usual = defaults_of(type(value))
    elif is_dataclass(value):
        usual = {field.name: field.default for field in fields(value)}
    else:
        return value
    return {
        name: _unusual(own) for name, default in usual.items() if (own := getattr(value, name)) != default
    }


def decode_case(data: bytes | str, *, source: str) -> WrapperCase:
    """Read a case from JSON.

    Raises:
        BadCaseError: the case is damaged or impossible; the message names `source` and the field.
    """
    found = decoded_json(data, WrapperCase, source=source, what="a wrapper case", error=BadCaseError)
    return limits.bounded(found, source=source)
