"""What the user of torch's stages declares of their boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from pipeconform.adapter import Held, Plan, TensorSpec
from pipeconform.stage_wrapping import axis_of_parts, placed, placement_of_held

__all__ = ["declared"]


def declared(plan: Plan, stage: int) -> dict[str, Any]:
    """The user's declaration of a stage's boundaries: with it torch does not exchange shapes."""
    if plan.declared is None:
        return {}
    said, cut = plan.declared[stage], plan.tensor_parallel
    held = None if cut is None else cut.boundary
    if held is None:
        return {"input_args": _examples(said.inputs), "output_args": _examples(said.outputs)}
    mesh, last = plan.ranks.mesh, len(plan.stages) - 1
    assert mesh is not None
    axis = axis_of_parts(mesh)
    inputs = _examples(said.inputs, *((axis, held) if stage else ()))
    outputs = _examples(said.outputs, *((axis, held) if stage < last else ()))
    found: dict[str, Any] = {"input_args": inputs, "output_args": outputs}
    if any(one.requires_grad for one in said.outputs):  # of what is cut, torch wants to know gradients, too
        found |= {"input_grads": _gradients(inputs), "output_grads": _gradients(outputs)}
    return found


def _examples(
    specs: Sequence[TensorSpec], mesh: DeviceMesh | None = None, held: Held = "whole"
) -> tuple[torch.Tensor, ...]:
    """Tensors without values, or DTensors of them."""
    found = []
    for one in specs:
        made = torch.empty(one.shape, dtype=one.dtype, device="meta")
        if mesh is not None:
            made = placed(made, mesh, placement_of_held(held))
        found.append(made.detach().requires_grad_(one.requires_grad))
    return tuple(found)


def _gradients(examples: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    return tuple(one.detach() if one.requires_grad else None for one in examples)
