"""What an implementation claims, asked in a rank process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeconform.supported import require_supported_torch

if TYPE_CHECKING:
    from pipeconform.adapter import Description
    from pipeconform.wrapper import WrapperDescription

__all__ = ["any_description_of", "description_of"]


def description_of(impl: str) -> Description:
    """Import `impl` in a process of its own and return its description.

    Raises:
        BadAdapterError: it cannot be found, imported or described.
        HarnessError: the process died or hung.
    """
    require_supported_torch()
    from pipeconform.execute.implementation import resolve

    full = resolve(impl)  # a wrong name needs no process to be refused
    from pipeconform.campaign.executor import describe
    from pipeconform.ranks.pools import Pools

    with Pools() as pools:
        return describe(pools, full)


def any_description_of(impl: str) -> Description | WrapperDescription:
    """Likewise, of a pipeline or of a data-parallel wrapper.

    Raises:
        BadAdapterError: it cannot be found, imported or described.
        HarnessError: the process died or hung.
    """
    from pipeconform.errors import IsWrapperError
    from pipeconform.execute.implementation import WRAPPERS, resolve
    from pipeconform.ranks.pools import Pools
    from pipeconform.replication.campaign import PRELOAD, describe

    if impl not in WRAPPERS:
        try:
            return description_of(impl)
        except IsWrapperError:
            pass
    with Pools(preload=PRELOAD) as pools:
        return describe(pools, resolve(impl))
