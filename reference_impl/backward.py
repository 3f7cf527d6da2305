"""Backward through one microbatch's graph: at once, or in an input part and a weight part.

The graph of a stage has two kinds of nodes: those on a *path* from its outputs to its inputs, and the
rest, which lead to parameters only. A linear layer's node lies on the path and has edges that leave it,
towards the weight and the bias::

    output ── Addmm ── Relu ── Addmm ── input          the path
                └─ W2            └─ W1                 edges that leave it

The *input part* (I) sends the gradient along the path and stops there. Each node with an edge that leaves
the path keeps the gradient it received. The *weight part* (W) asks each of those nodes once more, with the
gradient it kept, takes what belongs to the edges that leave the path, and lets autograd go on from there.

In the weight part nodes are called directly, not through autograd, so a tensor hook on the path is not
called a second time. The price: such a node computes its input's gradient again, and it is thrown away.
No assumption is made about the model: views, nodes with several outputs, modules used twice, frozen
parts and unused parameters are just graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


def full(
    roots: Sequence[Tensor], gradients: Sequence[Tensor], *, inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Accumulate every parameter's gradient and return those of `inputs` (leaves with no ``.grad`` yet)."""
    if roots:
        torch.autograd.backward(list(roots), list(gradients))
    found = [leaf.grad for leaf in inputs]
    for leaf in inputs:
        leaf.grad = None
    return found


@dataclass
class _Kept:
    """A node of the path, the gradients of its outputs, and its edges that leave the path."""

    node: Node
    gradients: tuple[Tensor | None, ...] | None = None


@dataclass
class WeightPart:
    """What is left to do for one microbatch after its input part."""

    path: frozenset[Node] = frozenset()
    kept: list[_Kept] = field(default_factory=list)
    roots: list[GradientEdge] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    def run(self) -> None:
        """Accumulate the parameters' gradients; call this once."""
        edges, gradients = list(self.roots), list(self.gradients)
        for kept in self.kept:
            if kept.gradients is None:
                continue  # no gradient came this way
            for (target, index), gradient in _ask(kept.node, kept.gradients):
                if target not in self.path and gradient is not None:
                    edges.append(GradientEdge(target, index))
                    gradients.append(_fitted(gradient, target, index))
        if edges:
            torch.autograd.backward(edges, gradients)


def input_part(
    roots: Sequence[Tensor], gradients: Sequence[Tensor], *, inputs: Sequence[Tensor]
) -> tuple[list[Tensor | None], WeightPart]:
    """The gradients of `inputs`, and what remains to be done for the parameters.

    The graph stays alive until the weight part is dropped.
    """
    # Step 1: find the path. Without inputs that need a gradient there is none, and W does everything.
    starts = [get_gradient_edge(root) for root in roots]
    path = _path([edge.node for edge in starts], [get_gradient_edge(leaf).node for leaf in inputs])
    rest = WeightPart(path=path)
    along: list[tuple[Tensor, Tensor]] = []
    for root, edge, gradient in zip(roots, starts, gradients, strict=True):
        if edge.node in path:
            along.append((root, gradient))
        else:
            rest.roots.append(edge)
            rest.gradients.append(gradient)
    if not along:
        return [None] * len(inputs), rest
    # Step 2: let every node with an edge that leaves the path keep what it receives.
    handles = []
    for node in path:
        if any(target is not None and target not in path for target, _ in node.next_functions):
            rest.kept.append(_Kept(node))
            handles.append(node.register_prehook(_keeper(rest.kept[-1])))
    # Step 3: send the gradient along the path.
    try:
        found = torch.autograd.grad(
            [root for root, _ in along],
            list(inputs),
            [gradient for _, gradient in along],
            retain_graph=True,
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    return list(found), rest


def _keeper(kept: _Kept) -> Callable[[tuple[Tensor, ...]], None]:
    def keep(gradients: tuple[Tensor, ...]) -> None:
        kept.gradients = tuple(gradients)

    return keep


def _path(starts: Sequence[Node], ends: Sequence[Node]) -> frozenset[Node]:
    """Every node that lies on a way from one of `starts` to one of `ends`, both included."""
    # Step 1: visit all nodes from the starts and note which node points to which (no recursion: graphs are deep).
    pointing: dict[Node, list[Node]] = defaultdict(list)
    seen, waiting = set(starts), list(dict.fromkeys(starts))
    while waiting:
        node = waiting.pop()
        for target, _ in node.next_functions:
            if target is None:
                continue
            pointing[target].append(node)
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    # Step 2: walk back from the ends.
    path = {node for node in ends if node in seen}
    waiting = list(path)
    while waiting:
        for node in pointing[waiting.pop()]:
            if node not in path:
                path.add(node)
                waiting.append(node)
    return frozenset(path)


def _fitted(gradient: Tensor, target: Any, index: int) -> Tensor:
    """Do what autograd does to every gradient on its way: undo broadcasting, convert to the value's dtype."""
    meta = target._input_metadata[index]
    if gradient.shape != torch.Size(meta.shape):
        gradient = gradient.sum_to_size(meta.shape)
    return gradient.to(meta.dtype)


def _ask(node: Any, gradients: tuple[Tensor | None, ...]) -> list[tuple[tuple[Node, int], Tensor | None]]:
    """Run one node outside autograd: each of its edges, and the gradient that belongs to it."""
    with torch.no_grad():
        if callable(node):  # built into torch: one result per edge
            results = node(*gradients)
            results = results if isinstance(results, tuple) else (results,)
            return [
                (edge, result)
                for edge, result in zip(node.next_functions, results, strict=True)
                if edge[0] is not None
            ]
        # A torch.autograd.Function written in Python: one result per argument of its forward, of which
        # only those that need a gradient have an edge; missing gradients reach it as zeros.
        filled = [
            torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device) if gradient is None else gradient
            for gradient, meta in zip(gradients, node._input_metadata, strict=True)
        ]
        results = node.apply(*filled)
        results = results if isinstance(results, tuple) else (results,)
        wanted = [result for result, needed in zip(results, node.needs_input_grad, strict=False) if needed]
        return list(zip([edge for edge in node.next_functions if edge[0] is not None], wanted, strict=True))
