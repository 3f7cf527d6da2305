"""What a rank does with a wrapper besides plain training: before, between and after its steps."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.observe.array import Array
from pipeconform.wrapper import Wrapper
from pipeconform.wrappers.modules import begun

__all__ = ["FIRST_SCALE", "LR", "ended", "handed_over", "prepared", "regrouped", "written"]

LR = 0.125
FIRST_SCALE = 1024.0


def prepared(case: WrapperCase, step: int, wrapper: Wrapper) -> Wrapper:
    """Prepare a step as the case asks, and return the wrapper to continue with."""
    match case.special, step:
        case "in_backward", 0:
            wrapper.step_in_backward(LR)
        case (("buffers_before" | "buffers_after"), 0):
            wrapper.register_buffer_hook(average, before_forward=case.special == "buffers_before")
        case "loaded", 0:
            # the state of an unwrapped module, as one rank would save it
            wrapper.load_full_state(begun(case, rank=0).state_dict())
        case "logged_wrongly", 0:
            wrapper.set_logging_rate(0)
        case "pickled", 1:
            wrapper = wrapper.pickled()
    return wrapper


def regrouped(case: WrapperCase, wrapper: Wrapper) -> Any:
    """Move the wrapper to a new group and return the group; all ranks must call this."""
    assert case.regroup is not None
    group = dist.new_group(list(case.regroup.ranks))
    wrapper.change_group(group)
    return group


def average(buffers: Mapping[str, Tensor]) -> None:
    """A user's hook that replaces floating-point buffers with their mean over the ranks."""
    with torch.no_grad():
        for buffer in buffers.values():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer.div_(dist.get_world_size())


def written(state: Mapping[str, Tensor]) -> bytes:
    """A state dict as the bytes that ``torch.save`` writes, including any metadata."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def handed_over(checkpoint: bytes, wrapper: Wrapper) -> None:
    """Load the checkpoint of another world, which is the same on every rank."""
    state: Mapping[str, Tensor] = torch.load(io.BytesIO(checkpoint), weights_only=True)
    wrapper.load_full_state(state)


def ended(case: WrapperCase, wrapper: Wrapper) -> dict[str, Any]:
    """The fields of `Shown` to set after the last step."""
    if case.special == "saved":
        state = wrapper.full_state()
        saved = {name: Array.of(value) for name, value in state.items()}
        return {"saved": saved, "checkpoint": written(state) if dist.get_rank() == 0 else b""}
    if case.special == "logged":
        wrapper.set_logging_rate(2)
        return {"logged": {name: str(value) for name, value in wrapper.logged().items()}}
    return {}
