"""A wrapper case: a module, replicas with different data on each, options and steps, as immutable data."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from pipeconform.errors import BadCaseError
from pipeconform.wrapper import WrapOptions

__all__ = ["Form", "HookKind", "Pass", "Step", "Uneven", "WrapperCase", "decode_case"]

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
]
Form = Literal["tensor", "tuple", "dict", "dataclass", "nested"]
HookKind = Literal[
    "", "none", "float16", "bfloat16", "user", "not_callable", "one_argument", "annotated", "second"
]


class _Data(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    repr_omit_defaults=True,
):
    """Strict, immutable, printed without what is default."""


class Pass(_Data, frozen=True, kw_only=True):
    """One backward, of one or more forwards.

    `sync` says where it is: outside ``no_sync``, inside, inside two of them, or with one of its halves inside.
    """

    sync: Literal["yes", "no", "nested", "forward_inside", "backward_inside"] = "yes"
    uses: tuple[str, ...] = ()
    """Of a module with towers: the towers that each rank's forward runs; empty for all."""
    forwards: int = 1

    @property
    def synchronises(self) -> bool:
        """Whether its gradients are reduced: where the forward ran decides."""
        return self.sync in ("yes", "backward_inside")


class Step(_Data, frozen=True, kw_only=True):
    """Clear the gradients, run the passes, take an optimizer step."""

    passes: tuple[Pass, ...] = (Pass(),)
    zero: Literal["none", "zeros", "keep"] = "none"


class Uneven(_Data, frozen=True, kw_only=True):
    """How many of the steps each rank runs, inside ``join``."""

    steps: tuple[int, ...]
    divide_by_initial: bool = True
    raise_early: bool = False


class WrapperCase(_Data, frozen=True, kw_only=True):
    """One execution of a wrapper: everything it depends on."""

    module: ModuleKind = "plain"
    form: Form = "tensor"
    ranks: int = 2
    options: WrapOptions = WrapOptions()
    steps: tuple[Step, ...] = (Step(), Step())
    own_values: bool = False
    """Every rank begins with other values."""
    own_shape: bool = False
    """The last rank's first parameter has another shape."""
    hook: HookKind = ""
    uneven: Uneven | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse impossible combinations."""
        if self.ranks < 1 or not self.steps or any(not step.passes for step in self.steps):
            raise BadCaseError("a wrapper case has at least one rank, one step and a pass in every step")
        if self.uneven is not None and len(self.uneven.steps) != self.ranks:
            raise BadCaseError(f"uneven.steps has {len(self.uneven.steps)} entries for {self.ranks} ranks")
        uses = [one.uses for step in self.steps for one in step.passes if one.uses]
        if any(len(one) != self.ranks for one in uses) or (uses and self.module != "towers"):
            raise BadCaseError("Pass.uses names the towers of every rank, of a module with towers")

    def num_steps(self, rank: int) -> int:
        """How many steps a rank runs."""
        return len(self.steps) if self.uneven is None else self.uneven.steps[rank]

    def present(self, step: int) -> tuple[int, ...]:
        """The ranks that run a step."""
        return tuple(rank for rank in range(self.ranks) if step < self.num_steps(rank))

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits, equal for equal cases on every machine."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:12]


def decode_case(data: bytes, *, source: str) -> WrapperCase:
    """Read a case from JSON.

    Raises:
        BadCaseError: it is damaged or impossible; the message names `source` and the field.
    """
    try:
        return msgspec.json.decode(data, type=WrapperCase)
    except msgspec.DecodeError as error:
        raise BadCaseError(f"{source}: not a wrapper case: {error}") from error
