"""Options that name a device on which the module is not, whichever devices the ranks were given."""

from __future__ import annotations

import dataclasses

import torch

from pipeconform.wrapper import WrapOptions

__all__ = ["naming_another_device"]


def naming_another_device(options: WrapOptions, *, device: torch.device | str) -> WrapOptions:
    """The same options, with another index in the place of a single one that is the module's own device.

    A case knows an index only, and one rank of a large machine may have been given the device of that index: there it
    would be right.
    """
    own = torch.device(device).index
    if own is None or options.device_ids != (own,):
        return options
    return dataclasses.replace(options, device_ids=(own - 1 if own else 1,))
