"""Trees of tensors: tensors inside tuples, lists and dicts, to any depth.

A stage may return a tensor, a tuple, a list, a dict, or these inside one another. Three things are done
with such values: list the leaves, put other leaves in their places, and describe the shape of the tree
in words that can be sent to another process (`Structure`). A 1-tuple is not its element, and a list is
not a tuple: the container always survives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Structure = Any
"""``0`` for a leaf, else ``("tuple", children)``, ``("list", children)`` or ``("dict", keys, children)``.

Made of tuples, strings and numbers only: it can be a key, and JSON carries it (as lists, which `build` takes, too).
"""


def structure_of(tree: Any) -> Structure:
    """The containers of `tree`, without its leaves (a named tuple is described as a tuple)."""
    if isinstance(tree, tuple):
        return "tuple", tuple(map(structure_of, tree))
    if isinstance(tree, list):
        return "list", tuple(map(structure_of, tree))
    if isinstance(tree, dict):
        return "dict", tuple(tree), tuple(map(structure_of, tree.values()))
    return 0


def leaves_of(tree: Any) -> list[Any]:
    """The leaves, left to right (dicts in their own order)."""
    if isinstance(tree, tuple | list):
        return [leaf for child in tree for leaf in leaves_of(child)]
    if isinstance(tree, dict):
        return [leaf for child in tree.values() for leaf in leaves_of(child)]
    return [tree]


def arguments_of(inputs: Any) -> tuple[Any, ...]:
    """The positional arguments of a stage that is given `inputs`: the elements of a tuple or list, or the value."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def build(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree with these containers and these leaves; the inverse of `structure_of` and `leaves_of`."""
    remaining = iter(leaves)

    def grow(part: Structure) -> Any:
        if part == 0:
            return next(remaining)
        children = [grow(child) for child in part[-1]]
        if part[0] == "dict":
            return dict(zip(part[1], children, strict=True))
        return tuple(children) if part[0] == "tuple" else children

    return grow(structure)


def combine(function: Callable[[Sequence[Any]], Any], trees: Sequence[Any]) -> Any:
    """One tree from several equal ones: each leaf is ``function([its values in all trees])``.

    The containers are those of the first tree, named tuples included.

    Raises:
        ValueError: The trees have different containers.
    """
    first = trees[0]
    structures = [structure_of(tree) for tree in trees]
    if any(structure != structures[0] for structure in structures):
        raise ValueError(
            f"the values have different containers: {' and '.join(sorted(set(map(str, structures))))}"
        )
    columns = zip(*map(leaves_of, trees), strict=True)
    joined = map(function, columns)
    return map_leaves(lambda _: next(joined), first)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with ``function(leaf)`` in every leaf's place; named tuples keep their type."""
    if isinstance(tree, dict):
        return {key: map_leaves(function, child) for key, child in tree.items()}
    if isinstance(tree, tuple | list):
        children = [map_leaves(function, child) for child in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*children)
        return tuple(children) if isinstance(tree, tuple) else children
    return function(tree)
