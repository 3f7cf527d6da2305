"""How a wrapper may divide parameters, gradients and optimizer states among the ranks: options and claims, as data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "EXPERT",
    "Nesting",
    "Precision",
    "Refusal",
    "ShardedModule",
    "Sharding",
    "ShardingClaims",
    "Strategy",
    "units_of",
]

Strategy = Literal["full", "gradients", "none", "hybrid"]
Nesting = Literal["root", "children", "nested", "uneven"]
Precision = Literal["same", "float32", "bfloat16", "reduce_float32"]
ShardedModule = Literal["blocks", "few", "partly", "apart", "experts"]

EXPERT = "expert"
"""The child of a module with experts: its parameters belong to some of the ranks only."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a module is to be sharded.

    `strategy`: ``full`` frees whole parameters after a forward and gathers them again in the backward; ``gradients``
    keeps them until then; with ``none`` every rank has all; ``hybrid`` is ``full`` over neighbouring pairs of ranks,
    and replicated over the pairs.
    """

    strategy: Strategy = "full"
    forward_prefetch: bool = False
    """Parameters of the next unit are gathered while one computes."""
    backward_prefetch: bool = False
    offload: bool = False
    """Shards and their gradients are kept in the host's memory, where the optimizer runs, too."""
    original_parameters: bool = True
    """The optimizer gets the parameters, or their shards, one by one; otherwise the wrapper decides."""
    nesting: Nesting = "root"
    """Which submodules are units of their own; see `units_of`."""
    expert_groups: tuple[tuple[int, ...], ...] = ()
    """For each expert, the ranks that share it: `EXPERT` is sharded and averaged over these."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A combination of options that a wrapper documents as refused: every rank raises a message matching `says`."""

    combination: tuple[tuple[str, str], ...]
    """Axis and value as in `wrappers.sharded_grid`: ``(("original_parameters", "False"), ("module", "partly"))``."""
    says: str
    """A regular expression."""

    def matches(self, point: Mapping[str, object]) -> bool:
        """Whether a point of the grid has all these values."""
        return all(str(point.get(axis)) == value for axis, value in self.combination)


@dataclass(frozen=True, kw_only=True)
class ShardingClaims:
    """The values of every option that a sharding wrapper offers; all combinations are, except for `refusals`."""

    strategies: tuple[Strategy, ...] = ("full",)
    forward_prefetch: bool = False
    backward_prefetch: bool = False
    precisions: tuple[Precision, ...] = ("same",)
    """``param_dtype`` and ``reduce_dtype``: unchanged, both float32, bfloat16 and float32, or only the last float32."""
    original_parameters: tuple[bool, ...] = (True,)
    nestings: tuple[Nesting, ...] = ("root",)
    modules: tuple[ShardedModule, ...] = ("blocks",)
    """``few``: a rank has no part of some parameter; ``partly``: one needs no gradient; ``apart``: some are ignored."""
    accumulates: bool = False
    """Whether `no_sync` may surround passes."""
    compiled: bool = False
    """Whether parts of the module may be compiled."""
    refusals: tuple[Refusal, ...] = ()


def units_of(module: nn.Module, nesting: Nesting, *, ignored: Collection[str] = ()) -> tuple[str, ...]:
    """The submodules, by name, that are units of their own, inner ones first; the root, last, is always one.

    ``children``: those with a parameter that is not `ignored`; ``nested``: their children, too; ``uneven``: every
    second.
    """
    if nesting == "root":
        return ("",)
    kept = {name for name, _ in module.named_parameters() if name not in ignored}
    parts = [name for name, _ in module.named_modules() if any(one.startswith(f"{name}.") for one in kept)]
    children = [name for name in parts if name.count(".") == 0]
    below = [name for name in parts if name.count(".") == 1]
    if nesting == "children":
        return (*children, "")
    if nesting == "nested":
        return (*below, *children, "")
    return (*below[::2], *children[::2], "")
