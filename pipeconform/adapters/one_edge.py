"""The tensor that crosses every boundary, for engines whose messages all have one shape and dtype."""

from __future__ import annotations

from pipeconform.adapter import Plan, TensorSpec

__all__ = ["edge_of"]


def edge_of(plan: Plan) -> TensorSpec | None:
    """What this rank sends and receives, the same at every boundary; None if nothing crosses one."""
    if plan.declared is not None:
        stage, said = next(iter(plan.declared.items()))
        return (said.inputs if stage else said.outputs)[0]
    edge = next(iter(plan.boundaries()), None)
    return None if edge is None else edge.tensors[0]
