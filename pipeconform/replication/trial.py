"""Trying a wrapper that is wrong on purpose: is it caught, by which words, after how many executions?"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import cast

from pipeconform.campaign.trial import Fault, Trial, tried
from pipeconform.ranks.protocols import RankPools
from pipeconform.replication.campaign import WrapperCampaign, describe
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS

__all__ = ["try_wrapper_fault", "wrapper_faults"]

_REGISTRY = "pipeconform.reference_impl.faults.registry_wrappers"  # found by name, as the others are


def wrapper_faults() -> Mapping[str, Fault]:
    """All faulty wrappers of the reference, by name."""
    return cast("Mapping[str, Fault]", importlib.import_module(_REGISTRY).WRAPPER_FAULTS)


def try_wrapper_fault(fault: Fault, pools: RankPools) -> Trial:
    """Judge `fault` by the requirement it breaks, on its listed cases until it is caught.

    Raises:
        HarnessError: processes cannot be started.
    """
    begun = time.monotonic()
    description = describe(pools, fault.reference)
    pools.idle_limit = description.claims.patience
    campaign = WrapperCampaign(
        implementation=fault.reference, reference=fault.reference, description=description, pools=pools
    )
    listed = WRAPPER_JUDGEMENTS[fault.requirement].drawn(description.claims, seed=0)
    return tried(fault, listed, lambda case: campaign.judge_case(fault.requirement, case), begun=begun)
