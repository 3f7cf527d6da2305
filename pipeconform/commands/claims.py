"""What an implementation claims, asked in a rank process."""

from __future__ import annotations

from pipeconform.adapter import Description
from pipeconform.campaign.executor import describe
from pipeconform.errors import IsWrapperError
from pipeconform.replication.campaign import PRELOAD
from pipeconform.replication.campaign import describe as describe_wrapper
from pipeconform.run.implementation import WRAPPERS, resolve
from pipeconform.run.pools import Pools
from pipeconform.run.supported import require_supported_torch
from pipeconform.wrapper import WrapperDescription

__all__ = ["any_description_of", "description_of"]


def description_of(impl: str) -> Description:
    """Import `impl` in a process of its own and return its description.

    Raises:
        BadAdapterError: it cannot be found, imported or described.
        HarnessError: the process died or hung.
    """
    require_supported_torch()
    full = resolve(impl)  # a wrong name needs no process to be refused
    with Pools() as pools:
        return describe(pools, full)


def any_description_of(impl: str) -> Description | WrapperDescription:
    """As `description_of`, of a pipeline or of a data-parallel wrapper.

    Raises:
        BadAdapterError: it cannot be found, imported or described.
        HarnessError: the process died or hung.
    """
    if impl not in WRAPPERS:
        try:
            return description_of(impl)
        except IsWrapperError:
            pass
    with Pools(preload=PRELOAD) as pools:
        return describe_wrapper(pools, resolve(impl))
