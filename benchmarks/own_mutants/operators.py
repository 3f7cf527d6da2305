"""What is changed in the product's own modules: as in mutants of the reference, and what judgements get wrong.

Besides turned conditions, comparisons off by one, ``and`` for ``or``, and statements left out:

* ``loop``: the first or the last round of a ``for`` is skipped: one step, rank, stage or microbatch;
* ``bound``: what a difference is compared with is a thousand times as large;
* ``link``: a ``yield`` or ``yield from`` gives nothing, in a function that remains a generator.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutants.operators import variants

__all__ = ["OPERATORS", "of_the_product"]

OPERATORS = ("boolean", "bound", "comparison", "condition", "link", "loop", "statement")
_LIMITS = ("bound", "limit", "most", "least", "eps", "allowed", "near")
_WIDER = 1024


def of_the_product(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in the place of a node."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.YieldFrom):
        yield "link", ast.Expr(ast.YieldFrom(ast.Tuple([], ast.Load())))
        return
    for operator, other in variants(node):
        # truth values are left alone: most are keywords, such as strict=True, that no right program depends on
        if operator in OPERATORS and not isinstance(node, ast.Constant):
            yield operator, other
    if isinstance(node, ast.For):
        for part in (
            ast.Slice(lower=ast.Constant(1)),
            ast.Slice(upper=ast.UnaryOp(ast.USub(), ast.Constant(1))),
        ):
            values = ast.Tuple([ast.Starred(node.iter, ast.Load())], ast.Load())
            rounds = ast.Subscript(values, part, ast.Load())
            yield "loop", ast.copy_location(ast.For(node.target, rounds, node.body, node.orelse), node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _wider(node)


def _wider(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    operator, (right,) = node.ops[0], node.comparators
    ordered = isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    if ordered and _is_limit(right):
        yield "bound", ast.Compare(node.left, [operator], [_times(right)])


def _is_limit(node: ast.expr) -> bool:
    return any(word in ast.unparse(node).lower() for word in _LIMITS)


def _times(node: ast.expr) -> ast.expr:
    return ast.BinOp(node, ast.Mult(), ast.Constant(_WIDER))
