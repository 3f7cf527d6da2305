"""16-bit results of kernels that compute in float32 or wider and round once.

In 16 bits, a bound that allows every intermediate rounding allows everything after a few layers. But kernels on CPUs
and accelerators keep 16-bit numbers in float32 while they compute one result, and round it once. Then most results are
certain to the last bit: another order of additions moves the value before rounding by less than its distance from the
next rounding boundary. Only where it may cross one do evaluations differ, by one step.

What a kernel shows decides: a result that one rounding does not give is charged for every rounding, as without this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from pipeconform.bounds.ball import Ball, Unit
from pipeconform.bounds.moves import tensors_in
from pipeconform.bounds.rules import Call, Rule

__all__ = ["NARROW", "rounded_once"]

NARROW: Final = (torch.float16, torch.bfloat16)
_COPIES = ("_to_copy", "clone", "copy")
_ONE_OPERATION = ("add", "sub", "mul")
"""Operations whose exact result on two numbers, if float32 holds it, is what float32 computes."""


def rounded_once(
    call: Call, rule: Rule, *, record: Callable[[Tensor, Ball], None], plainly: Sequence[Ball | None]
) -> list[Ball | None]:
    """The balls of a call with 16-bit outputs; `plainly` are those of `rule` if every addition may round.

    `record` writes the ball of a tensor, so that `rule` can look it up. The call has arguments in the state before it.
    """
    wide = Unit.of(torch.float32, call.unit.sampler)
    if call.name in _COPIES:
        source = call.args.get("src", call["self"])
        before: list[Ball | None] = [call.lookup(source)]
    else:
        before = _evaluated(call, rule, record, wide)
    fixed = all(call.lookup(one).fixed for one in tensors_in(tuple(call.args.values())))
    return [
        _sharper(ball, out, first, fixed=fixed)
        if out is not None and out.dtype in NARROW and ball and first
        else ball
        for ball, out, first in zip(plainly, call.outputs, before, strict=True)
    ]


def _evaluated(
    call: Call, rule: Rule, record: Callable[[Tensor, Ball], None], unit: Unit
) -> list[Ball | None]:
    """The balls of the results before they are rounded: the call on the same numbers in float64, in `unit`."""
    arguments = {name: _widened(value, call.lookup, record) for name, value in call.args.items()}
    schema = call.overload._schema.arguments
    result = call.overload(
        *(arguments[one.name] for one in schema if not one.kwarg_only),
        **{one.name: arguments[one.name] for one in schema if one.kwarg_only},
    )
    results = list(result) if isinstance(result, (list, tuple)) else [result]
    if len(results) != len(call.outputs):  # it wrote into its arguments
        return [None] * len(call.outputs)
    # arguments anew: a call in place has overwritten them
    again = {name: _widened(value, call.lookup, record) for name, value in call.args.items()}
    balls = rule(replace(call, args=again, outputs=results, unit=unit))
    found = [balls] if isinstance(balls, Ball) else list(balls)
    if found[0] is not None and (held := _held_by_float32(call, found[0])) is not None:
        return [Ball(found[0].mid, found[0].rad.masked_fill(held, 0.0), unit)]
    return [*found, *[None] * (len(call.outputs) - len(found))]


def _held_by_float32(call: Call, result: Ball) -> Tensor | None:
    """Where float32 holds all that is computed of exact numbers; None if that is unknown.

    16-bit sums often lie exactly between two numbers, where the smallest doubt would leave either.
    """
    if call.name == "sum" and call["self"].dtype in NARROW:
        return None if bool(call.ball("self").rad.any()) else _adds_up_exactly(call)
    if call.name not in _ONE_OPERATION or call.args.get("alpha", 1) != 1:
        return None
    held = result.mid.to(torch.float32).to(torch.float64) == result.mid
    for name in ("self", "other"):
        held = held & (call.ball(name).rad == 0)
    return held


def _adds_up_exactly(call: Call) -> Tensor:
    """Where a sum of 16-bit numbers is exact in float32, in any order, as all are multiples of one step."""
    terms, dims = call["self"], call.dims() or list(range(call["self"].ndim))
    sizes = terms.to(torch.float64).abs()
    step = torch.finfo(terms.dtype).eps * torch.exp2(torch.frexp(sizes).exponent.to(torch.float64) - 1)
    least = step.masked_fill(sizes == 0, torch.inf).amin(dims, call.keepdim)
    held: Tensor = sizes.sum(dims, call.keepdim) < least / torch.finfo(torch.float32).eps
    return held


def _widened(value: Any, lookup: Callable[[Tensor], Ball], record: Callable[[Tensor, Ball], None]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_widened(one, lookup, record) for one in value]
    if isinstance(value, torch.dtype):
        return torch.float64 if value in NARROW else value
    if not isinstance(value, Tensor):
        return value
    copy = value.to(torch.float64) if value.is_floating_point() else value.clone()
    ball = lookup(value)
    if bool(ball.rad.any()):
        record(copy, ball)
    return copy


def _sharper(plain: Ball, shown: Tensor, before: Ball, *, fixed: bool) -> Ball:
    """`plain`, with the radii of those elements made smaller that one rounding explains; of `fixed` numbers or others.

    If that is all of them, what is shown stands for the exact value: doubt does not double with every operation.
    """
    value, spread = shown.to(torch.float64), (1 if fixed else 2) * before.rad
    low, high = (_rounded(before.mid + sign * spread, shown.dtype) for sign in (-1, 1))
    explained = (low <= value) & (value <= high)
    all_are = bool(explained.all())
    most = 2 * plain.rad if all_are else plain.rad
    rad = torch.minimum(torch.where(explained, torch.maximum(high - value, value - low), most), most)
    if bool((rad >= most).all()):
        return plain
    return Ball(plain.mid, rad, plain.unit, terms=plain.terms, fixed=all_are)


def _rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype).to(torch.float64)
