"""torch.distributed.pipelining's tracing front end: ``pipeline()`` on ``torch.export``, then ``build_stage``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.distributed import pipelining

from pipeconform.adapter import Boundary, Plan, Split, TensorSpec

__all__ = ["known_boundaries", "traced_stages"]


def traced_stages(plan: Plan, split: Split) -> dict[int, Any]:
    """This rank's stages, as torch makes them from the whole model."""
    args, kwargs = split.example()
    model = plan.model() if split.by != "annotations" else split.annotated(pipelining.pipe_split)
    model.train(plan.trains)  # an exported graph stays in the mode in which it was traced
    how: dict[str, Any] = {}
    if split.by == "policy":
        how["split_policy"] = _policy(model, split.units, num_stages=len(plan.stages))
    elif split.by == "points":
        where = {False: pipelining.SplitPoint.BEGINNING, True: pipelining.SplitPoint.END}
        how["split_spec"] = {point.module: where[point.after] for point in split.points}
    pipe = pipelining.pipeline(model, args, kwargs, **how)
    return {s: pipe.build_stage(s, plan.ranks.device, plan.ranks.pipeline_group) for s in plan.owned_stages()}


def known_boundaries(plan: Plan, modules: dict[int, nn.Module]) -> list[Boundary]:
    """What the stages hand on, from their graphs."""
    found = []
    for s, module in modules.items():
        if s == len(plan.stages) - 1:
            continue
        values = [node.meta["val"] for node in module.graph.output_node().all_input_nodes]  # type: ignore[union-attr,operator]
        tensors = tuple(
            TensorSpec(
                shape=tuple(value.shape),
                dtype=value.dtype,
                requires_grad=plan.trains,
                batch_dim=plan.batch_dim,
            )
            for value in values
        )
        found.append(Boundary(producer=s, consumer=s + 1, tensors=tensors))
    return found


def _policy(
    model: nn.Module, units: Sequence[str], *, num_stages: int
) -> Callable[[fx.GraphModule], fx.GraphModule]:
    """Put a ``pipe_split`` before those units that give every stage about equally many parameters."""
    sizes = [sum(p.numel() for p in model.get_submodule(unit).parameters()) for unit in units]
    share, before = sum(sizes) / num_stages, sizes[0]
    cuts: list[str] = []
    for position, size in enumerate(sizes[1:], 1):
        wanted = num_stages - 1 - len(cuts)
        if wanted and (before + size / 2 > share * (len(cuts) + 1) or len(units) - position == wanted):
            cuts.append(units[position])
        before += size

    def policy(traced: fx.GraphModule) -> fx.GraphModule:
        for unit in cuts:
            first = next(node for node in traced.graph.nodes if _is_inside(node, unit))
            with traced.graph.inserting_before(first):
                traced.graph.call_function(torch.ops.pippy._pipe_split.default)
        traced.recompile()
        return traced

    return policy


def _is_inside(node: fx.Node, unit: str) -> bool:
    """Whether a node belongs to the forward of the submodule `unit`."""
    stack = node.meta.get("nn_module_stack") or {}
    return node.op == "call_function" and any(path == unit for path, _ in stack.values())
