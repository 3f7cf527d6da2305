"""A campaign of whichever kind the implementation is of, and what a run asks of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from pipeconform.adapter import Description
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.options import Options
from pipeconform.campaign.pairs import reachable_points
from pipeconform.campaign.setup import (
    campaign_of,
    chosen_schedules,
    environment_of,
    environment_report,
    implementation_of,
    implementation_report,
)
from pipeconform.campaign.told import Told, Weight, group_of
from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.case.sizes import shapes
from pipeconform.case.strategies import Focus
from pipeconform.errors import IsWrapperError, UnknownNameError
from pipeconform.execute.implementation import WRAPPERS
from pipeconform.replication.again import AnyExecutor
from pipeconform.replication.campaign import WrapperCampaign
from pipeconform.replication.setup import wrapper_campaign_of
from pipeconform.spec import requirements
from pipeconform.spec.wrappers import Kind
from pipeconform.wrapper import WrapperDescription

__all__ = [
    "AnyCampaign",
    "any_campaign_of",
    "columns_of",
    "description_in",
    "executor_of",
    "kind_of",
    "tell",
    "variants_known",
    "variants_of",
    "weights",
]

AnyCampaign: TypeAlias = Campaign | WrapperCampaign


@contextmanager
def any_campaign_of(options: Options) -> Iterator[AnyCampaign]:
    """Start processes, let the implementation describe itself, and yield a campaign; all ends with it.

    Raises:
        UsageError: an unknown name, a wrong implementation, too few devices, an option that says nothing about it.
        HarnessError: processes cannot be started.
    """
    with ExitStack() as stack:
        if options.implementation in WRAPPERS:
            yield stack.enter_context(wrapper_campaign_of(options))
            return
        try:
            campaign: AnyCampaign = stack.enter_context(campaign_of(options))
        except IsWrapperError:
            campaign = stack.enter_context(wrapper_campaign_of(options))
        yield campaign


def kind_of(campaign: AnyCampaign) -> Kind:
    """What is judged."""
    return "pipeline" if isinstance(campaign, Campaign) else "wrapper"


def description_in(campaign: AnyCampaign) -> Description | WrapperDescription:
    """What the implementation says of itself."""
    if isinstance(campaign, WrapperCampaign):
        return campaign.description
    return campaign.executors["default"].description


def executor_of(campaign: AnyCampaign, variant: str) -> AnyExecutor:
    """What executes cases under an environment variant; a wrapper has no other than the default.

    Raises:
        UnknownNameError: the implementation does not ask for that variant.
    """
    if isinstance(campaign, WrapperCampaign):
        return campaign.executor
    if variant not in campaign.executors:
        raise UnknownNameError("environment variant", variant, campaign.executors)
    return campaign.executors[variant]


def variants_known(campaign: AnyCampaign) -> Mapping[str, Mapping[str, str]]:
    """The settings of each environment variant; the default has none of its own."""
    if isinstance(campaign, WrapperCampaign):
        return {"default": {}}
    return {"default": {}, **campaign.executors["default"].description.variants}


def columns_of(campaign: AnyCampaign, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The schedules under which cells are judged; of a wrapper, what stands for them.

    Raises:
        UnknownNameError: one asked for is not claimed.
    """
    if isinstance(campaign, WrapperCampaign):
        return (WRAPPER_COLUMN,)
    return chosen_schedules(campaign.executors["default"].description, wanted)


def variants_of(campaign: AnyCampaign, requirement: str) -> tuple[str, ...]:
    """The environment variants under which a requirement is judged."""
    if isinstance(campaign, WrapperCampaign):
        return ("default",)
    varied = campaign.profile.varied
    everywhere = varied is None or requirement.partition("-")[0] in varied
    return tuple(campaign.executors) if everywhere else ("default",)


def weights(campaign: AnyCampaign) -> dict[str, Weight]:
    """By group what it costs to judge, as far as claims tell; groups of a wrapper differ in nothing."""
    if isinstance(campaign, WrapperCampaign):
        return {}
    limits = campaign.limits
    return {
        group_of("", claim.name, variant): Weight(
            max((p for p, _ in shapes(limits, claim, Focus.PLAIN)), default=0),
            campaign.num_asked(
                claim.name, of=[row for row in requirements() if variant in variants_of(campaign, row.id)]
            ),
        )
        for claim in limits.capabilities.schedules
        for variant in campaign.executors
    }


def tell(campaign: AnyCampaign, wanted: tuple[str, ...]) -> Told:
    """What was judged, where, and on how many cases; `wanted` are the schedules that were asked for."""
    schedules = columns_of(campaign, wanted)
    if isinstance(campaign, WrapperCampaign):
        return Told(
            environment=environment_of({"default": campaign.pools}),
            implementation=implementation_of(
                campaign.implementation,
                campaign.description,
                campaign.description.claims,
                source=campaign.source,
                kind="wrapper",
            ),
            schedules=schedules,
            executed=campaign.executed,
            num_ranks=campaign.num_ranks,
            reached=(),
            reachable=(),
            max_ranks=campaign.ranks[1],
        )
    return Told(
        environment=environment_report(campaign),
        implementation=implementation_report(campaign),
        schedules=schedules,
        executed=campaign.executed,
        num_ranks=campaign.num_ranks,
        reached=tuple(sorted(campaign.points)),
        reachable=tuple(sorted(reachable_points(campaign.limits, schedules))),
        max_ranks=campaign.limits.max_ranks,
    )
