"""Builds the target of a campaign from an implementation's description, or from the claims in a result file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeconform.adapter import Capabilities
from pipeconform.campaign.describing import AnyDescription
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.target import Target
from pipeconform.campaign.wrapper import WrapperTarget
from pipeconform.case.focus import Limits
from pipeconform.spec import Profile
from pipeconform.spec.wrappers import Kind
from pipeconform.wrapper import WrapperClaims, WrapperDescription

__all__ = ["CLAIMS", "AnyClaims", "target_claiming", "target_of"]

AnyClaims = Capabilities | WrapperClaims
CLAIMS: Mapping[Kind, type[Capabilities] | type[WrapperClaims]] = MappingProxyType(
    {"pipeline": Capabilities, "wrapper": WrapperClaims}
)
"""The type of an implementation's claims, by kind, as result files store them."""


def target_of(
    description: AnyDescription,
    *,
    profile: Profile,
    ranks: tuple[int, int],
    seed: int = 0,
    examples: int | None = None,
    schedules: tuple[str, ...] = (),
) -> Target:
    """The target for an implementation with this description, on these numbers of ranks.

    `examples` limits the listed cases of each wrapper requirement; for a pipeline, the `profile` sets the number.

    Raises:
        UsageError: one of `schedules` is not claimed, or the implementation has no schedules.
    """
    if isinstance(description, WrapperDescription):
        return WrapperTarget.of(
            description, profile=profile, ranks=ranks, seed=seed, examples=examples, schedules=schedules
        )
    return PipelineTarget.of(description, profile=profile, ranks=ranks, seed=seed, schedules=schedules)


def target_claiming(
    claims: AnyClaims, *, name: str, profile: Profile, ranks: tuple[int, int], seed: int
) -> Target:
    """The target for an implementation of which only the name and the claims are known, as from a result file."""
    if isinstance(claims, WrapperClaims):
        description = WrapperDescription(name=name, version="", claims=claims)
        return WrapperTarget.of(description, profile=profile, ranks=ranks, seed=seed)
    least, most = ranks
    limits = Limits(capabilities=claims, min_ranks=least, max_ranks=most)
    return PipelineTarget(name=name, limits=limits, profile=profile, seed=seed)
