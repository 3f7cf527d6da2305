"""The operators: every place of a module's source where one of them applies.

Not touched, because nothing that runs right depends on them: docstrings, annotations, decorators, imports, the
text of errors (whatever stands in a ``raise``); nor what stands outside functions, which declares, as claims do.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["OPERATORS", "Mutation", "Variants", "mutated", "mutations", "variants"]

OPERATORS = (
    "comparison",
    "arithmetic",
    "constant",
    "boolean",
    "condition",
    "statement",
    "arguments",
    "result",
)
"""What can be changed: a comparison's operator, an arithmetic one, a number (by one), ``and``/``or``/``not`` and
truth values, a condition (negated), a statement (deleted), two positional arguments (exchanged), a returned
value (None)."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_LEAST_TO_EXCHANGE = 2
_Variant = tuple[str, ast.AST]
Variants = Callable[[ast.AST], Iterator[_Variant]]
"""What may stand in the place of a node: the operator's name, and another node."""


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change of one module."""

    operator: str
    where: str
    """The function around it, as ``Stage.forward``."""
    line: int
    before: str
    after: str
    ordinal: int
    """Its number among the changes that read the same in the same function."""

    @property
    def identity(self) -> str:
        """What names it; the line is not part of it, so that changes elsewhere leave it alone."""
        return "\n".join((self.operator, self.where, self.before, self.after, str(self.ordinal)))


@dataclass(frozen=True)
class _Place:
    """A node, how to put another in its place, and the scope it stands in."""

    node: ast.AST
    put: Callable[[ast.AST], None]
    scope: str


def mutations(source: str, *, by: Variants | None = None) -> tuple[Mutation, ...]:
    """Every change of `source` that some operator makes, in the order of the source."""
    return tuple(mutation for mutation, _, _ in _all(ast.parse(source), by or variants))


def mutated(source: str, identity: str, *, by: Variants | None = None) -> ast.Module:
    """The syntax tree of `source` with one change made.

    Raises:
        KeyError: no change of `source` has this identity.
    """
    tree = ast.parse(source)
    for mutation, place, other in _all(tree, by or variants):
        if mutation.identity == identity:
            place.put(ast.copy_location(other, place.node))
            return ast.fix_missing_locations(tree)
    raise KeyError(identity)


def _all(tree: ast.Module, by: Variants) -> Iterator[tuple[Mutation, _Place, ast.AST]]:
    seen: dict[tuple[str, ...], int] = {}
    for place in _places(tree, ""):
        if not place.scope:
            continue
        for operator, other in by(place.node):
            before, after = ast.unparse(place.node), ast.unparse(other)
            key = (operator, place.scope, before, after)
            seen[key] = ordinal = seen.get(key, -1) + 1
            mutation = Mutation(
                operator=operator,
                where=place.scope,
                line=getattr(place.node, "lineno", 0),
                before=before,
                after=after,
                ordinal=ordinal,
            )
            yield mutation, place, other


def _places(node: ast.AST, scope: str) -> Iterator[_Place]:
    """All nodes below `node` that may be changed, in source order."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        children = value if isinstance(value, list) else [value]
        for position, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_left_alone(child):
                continue

            def put(
                other: ast.AST, name: str = name, position: int = position, value: object = value
            ) -> None:
                if isinstance(value, list):
                    value[position] = other
                else:
                    setattr(node, name, other)

            yield _Place(child, put, scope)
            if not isinstance(child, ast.Raise):
                yield from _places(child, _scope(child, scope))


def _scope(node: ast.AST, scope: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return f"{scope}.{node.name}".lstrip(".")
    return scope


def _is_left_alone(node: ast.AST) -> bool:
    docstring = (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
    return docstring or isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr)


def variants(node: ast.AST) -> Iterator[_Variant]:
    """What the operators above put in the place of a node."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield "comparison", ast.Compare(node.left, [_COMPARISONS[type(operator)]()], node.comparators)
        case ast.BinOp(op=operator) if type(operator) in _ARITHMETIC:
            yield "arithmetic", ast.BinOp(node.left, _ARITHMETIC[type(operator)](), node.right)
        case ast.Constant(value=bool(value)):
            yield "boolean", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "boolean", ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "boolean", node.operand
        case ast.If() | ast.IfExp() | ast.While():
            yield "condition", _negated(node)
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield "statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", ast.Pass()
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield "result", ast.Return(ast.Constant(None))
        case ast.Call(args=[first, second, *rest]) if not any(isinstance(a, ast.Starred) for a in node.args):
            if ast.dump(first) != ast.dump(second):
                yield "arguments", ast.Call(node.func, [second, first, *rest], node.keywords)


def _negated(node: ast.If | ast.IfExp | ast.While) -> ast.AST:
    test = ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.IfExp):
        return ast.IfExp(test, node.body, node.orelse)
    return type(node)(test, node.body, node.orelse)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
