"""Reading an implementation's claims, in a process of their own."""

from __future__ import annotations

from pipeconform.adapter import Description
from pipeconform.execute.implementation import resolve
from pipeconform.ranks.pools import Pools
from pipeconform.supported import import_torch, require_supported_torch
from pipeconform.wrapper import WrapperDescription

__all__ = ["any_description_of"]


def any_description_of(impl: str) -> Description | WrapperDescription:
    """Import `impl` in a process of its own and return its description.

    Raises:
        BadAdapterError: it cannot be found, imported or described.
        HarnessError: the process died or hung.
    """
    require_supported_torch()
    full = resolve(impl)  # refuses a wrong name before a process is started
    import_torch()
    from pipeconform.campaign.describing import describe  # noqa: PLC0415 - imports torch

    with Pools() as pools:
        return describe(pools, full)
