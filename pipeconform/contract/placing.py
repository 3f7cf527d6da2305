"""Puts a module on a device without taking it apart."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["placed"]


def placed(module: nn.Module, device: torch.device | str) -> nn.Module:
    """The module with its parameters and buffers on `device`, except for those on the meta device.

    On a device whose tensors cannot take a CPU tensor's place, ``Module.to`` makes new parameters: a shared one becomes
    two, and hooks on parameters are lost. Here a shared one stays shared, and its hooks and attributes come along. Such
    are the devices of PrivateUse1, unless their backend registers ``_has_compatible_shallow_copy_type``.
    """
    import torch

    place = torch.empty(0, device=device)
    tensors = list(chain(module.parameters(), module.buffers()))
    moving = [one for one in tensors if not one.is_meta and one.device != place.device]
    has_meta = any(one.is_meta for one in tensors)  # which Module.to cannot move
    if not has_meta and all(torch._has_compatible_shallow_copy_type(one, place) for one in moving):
        return module.to(device) if moving else module
    there = {one: _copied(one, place.device) for one in moving}
    for part in module.modules():
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for table in tables:
            table.update({name: there[one] for name, one in table.items() if one in there})
    return module


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on `device`; a parameter with the hooks and attributes that it has."""
    from torch import nn

    value = tensor.detach().to(device)
    if not isinstance(tensor, nn.Parameter):
        return value
    made = nn.Parameter(value, tensor.requires_grad)
    vars(made).update(vars(tensor))
    for hook in (tensor._backward_hooks or {}).values():
        made.register_hook(hook)  # type: ignore[no-untyped-call]
    for hook in (getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values():
        made.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return made
