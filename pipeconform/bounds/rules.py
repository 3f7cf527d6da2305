"""How each ATen operation propagates errors: one rule per operation, written in `Ball` arithmetic.

A rule gets a `Call` and returns one `Ball` per output (None for an output that carries no value). Kernels that fuse a
whole formula are in ``kernels``; an operation in neither table has no rule and must be refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from pipeconform.bounds.ball import Ball, Unit, choose, either


@dataclass(frozen=True)
class Call:
    """One operation: its arguments by schema name (as they were before it ran), outputs and unit."""

    name: str
    overload: Any
    args: Mapping[str, Any]
    outputs: Sequence[Tensor | None]
    unit: Unit
    lookup: Callable[[Tensor], Ball]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def wrap(self, value: Tensor | float) -> Ball:
        """The ball of a tensor or number, in the unit of this operation."""
        if isinstance(value, Tensor):
            return self.lookup(value).at(self.unit)
        like = next((out for out in self.outputs if out is not None), torch.empty(0))
        return Ball.constant(float(value), self.unit, like)

    def ball(self, name: str) -> Ball:
        """The ball of an argument that is a tensor or a number."""
        return self.wrap(self.args[name])

    def maybe(self, name: str) -> Ball | None:
        """The ball of an optional tensor argument."""
        value = self.args.get(name)
        return None if value is None else self.wrap(value)

    def dims(self, name: str = "dim") -> list[int]:
        """A reduction's dims as a list, empty for all."""
        dims = self.args.get(name)
        return [] if dims is None else [dims] if isinstance(dims, int) else list(dims)

    @property
    def keepdim(self) -> bool:
        """Whether a reduction keeps its dims."""
        return bool(self.args.get("keepdim", False))


Rule = Callable[[Call], "Ball | Sequence[Ball | None]"]


# -- elementwise -------------------------------------------------------------------------------------------


def _add(call: Call, sign: float = 1.0) -> Ball:
    factor = sign * float(call.args.get("alpha", 1))
    other = call.ball("other")
    other = other if factor == 1 else -other if factor == -1 else other.scale(factor)
    return call.ball("self") + other


def _rsub(call: Call) -> Ball:
    return call.ball("other") - call.ball("self").scale(float(call.args.get("alpha", 1)))


def _divide(call: Call) -> Ball:
    quotient = call.ball("self") / call.ball("other")
    mode = call.args.get("rounding_mode")
    return quotient if mode is None else _steps(quotient, torch.floor if mode == "floor" else torch.trunc)


def _pow(call: Call) -> Ball:
    """A base to a constant exponent; |x'^p − x^p| ≤ |x' − x|^p for 0 < p < 1."""
    base, exponent = call["self"], call["exponent"]
    if isinstance(exponent, Tensor):
        if exponent.ndim or call.lookup(exponent).rad.any():
            raise NotImplementedError("a tensor exponent")
        exponent = exponent.item()
    p = float(exponent)
    x = call.wrap(base)
    value, slope = x.mid.pow(p), p * x.mid.pow(p - 1)
    if p in (1.0, 2.0):
        bend: Tensor | float = 2.0 * (p == 2)
    else:
        reach = x.top if p >= 2 else (x.mid.abs() - 2 * x.rad).clamp(min=0)
        bend = abs(p * (p - 1)) * reach.pow(p - 2)
    most = x.rad.pow(p) if 0 < p < 1 else None
    return x.smooth(value, slope, bend, times=4 + abs(p), most=most)


def _power_of(call: Call) -> Ball:
    """A constant base to a tensor exponent."""
    base, x = float(call["self"]), call.ball("exponent")
    value, rate = base**x.mid, math.log(base)
    worst = torch.maximum(base ** (x.mid + 2 * x.rad), base ** (x.mid - 2 * x.rad))
    return x.smooth(value, rate * value, rate * rate * worst, times=4)


def _steps(x: Ball, step: Callable[[Tensor], Tensor]) -> Ball:
    """Functions that are constant between jumps: certain where the whole ball is between two jumps."""
    low, high = step(x.mid - 2 * x.rad), step(x.mid + 2 * x.rad)
    return Ball(step(x.mid), high - low, x.unit)


def _smooth(
    function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], bend: float, *, times: float = 4
) -> Rule:
    """A function with |f''| ≤ `bend` everywhere."""

    def rule(call: Call) -> Ball:
        x = call.ball("self")
        return x.smooth(function(x.mid), slope(x.mid), bend, times=times)

    return rule


def _expm1(call: Call) -> Ball:
    x = call.ball("self")
    return x.smooth(x.mid.expm1(), x.mid.exp(), (x.mid + 2 * x.rad).exp())


def _log1p(call: Call) -> Ball:
    x = call.ball("self")
    return x.smooth(x.mid.log1p(), 1 / (1 + x.mid), (1 + x.mid - 2 * x.rad).clamp(min=0) ** -2)


def _abs(call: Call) -> Ball:
    x = call.ball("self")
    return x.bent(x.mid.abs(), x.mid.sign(), x.mid.abs() > 2 * x.rad)


def _clamp(call: Call) -> Ball:
    """``clamp`` and its family, such as ``relu``: constant beyond their limits."""
    x = call.ball("self")
    low, high = (call.args.get(name) for name in ("min", "max"))
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        raise NotImplementedError("tensor limits")
    low = 0.0 if call.name == "relu" else -math.inf if low is None else low
    high = math.inf if high is None else high
    least, most = x.mid - 2 * x.rad, x.mid + 2 * x.rad
    inside, beyond = (least >= low) & (most <= high), (most < low) | (least > high)
    return x.bent(x.mid.clamp(low, high), inside.double(), inside | beyond)


def _threshold_backward(call: Call) -> Ball:
    grad, x = call.ball("grad_output"), call.ball("self")
    passes = compare(x, Ball.constant(float(call["threshold"]), call.unit, x.mid), torch.gt)
    return choose(passes, grad, Ball.constant(0.0, call.unit, grad.mid))


def _extreme(call: Call) -> Ball:
    """``minimum`` and ``maximum``: evaluations differ by no more than those of the arguments."""
    a, b = call.ball("self"), call.ball("other")
    pick = torch.maximum if call.name == "maximum" else torch.minimum
    return Ball(pick(a.mid, b.mid), torch.maximum(a.rad, b.rad), call.unit)


def _lerp(call: Call) -> Ball:
    """Start + w·(end − start), or end − (1−w)·(end − start) where w ≥ 1/2."""
    names = ("self", "end", "weight")
    start, end, weight = (call.ball(name) for name in names)

    def mirrored() -> Ball:
        start, end, weight = (call.ball(name).exactly() for name in names)
        return end - (end - start) * (call.wrap(1.0) - weight)

    return either(start + (end - start) * weight, mirrored, count=3)


def _addcmul(call: Call) -> Ball:
    product = call.ball("tensor1") * call.ball("tensor2")
    return call.ball("self") + product.scale(float(call["value"]))


def _addcdiv(call: Call) -> Ball:
    # value/t2·t1 and value·t1/t2 are both in use.
    quotient = call.ball("tensor1") / call.ball("tensor2")
    return call.ball("self") + quotient.scale(float(call["value"])).rounded(2)


# -- decisions ---------------------------------------------------------------------------------------------


def compare(a: Ball, b: Ball, relation: Callable[[Tensor, Tensor], Tensor]) -> Ball:
    """A comparison: radius 1 (may be the other answer) where the two balls' evaluations can meet."""
    exact = a.unit.exact()
    difference = a.at(exact) - b.at(exact)  # an element compared with itself is not in doubt
    doubt = 2 * difference.rad
    uncertain = (doubt > 0) & (difference.mid.abs() <= doubt)
    return Ball(relation(a.mid, b.mid).double(), uncertain.double(), exact)


def _compare(relation: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    return lambda call: compare(call.ball("self"), call.ball("other"), relation)


def _logical(call: Call) -> Ball:
    """Uncertain truth values are unknown; certain integers stay exact."""
    doubt = call.ball("self").rad > 0
    if "other" in call.args:
        doubt = doubt | (call.ball("other").rad > 0)
    out = call.outputs[0]
    assert out is not None
    return Ball(
        out.double(), torch.where(doubt, 1.0 if out.dtype == torch.bool else torch.inf, 0.0), call.unit
    )


def _special(call: Call) -> Ball:
    """A finite value with a finite error is neither NaN nor infinite in any evaluation."""
    x, relation = call.ball("self"), getattr(torch, call.name)
    return Ball(relation(x.mid).double(), x.rad.isinf().double(), call.unit)


def _where(call: Call) -> Ball:
    return choose(call.ball("condition"), call.ball("self"), call.ball("other"))


def _masked_fill(call: Call) -> Ball:
    return choose(call.ball("mask"), call.ball("value"), call.ball("self"))


def _largest(x: Ball, dims: Sequence[int], sign: int) -> tuple[Ball, Tensor, Tensor]:
    """Largest (for `sign` −1 smallest) elements over `dims`, their indices, and where others may win."""
    dims = [dim % max(1, x.mid.ndim) for dim in dims]
    kept = [dim for dim in range(x.mid.ndim) if dim not in dims]
    shape = [x.mid.shape[dim] for dim in kept]
    flat = x.map(lambda t: t.permute(*kept, *dims).reshape(*shape, -1))
    index = (sign * flat.mid).argmax(-1, keepdim=True)
    best = flat.map(lambda t: t.gather(-1, index))
    reach, safe = sign * flat.mid + 2 * flat.rad, sign * best.mid - 2 * best.rad
    rivals = ((reach >= safe).sum(-1) > 1) & (flat.rad.amax(-1) > 0)
    best = best.map(lambda t: t.squeeze(-1))
    widest = flat.rad.amax(-1)
    rad = torch.where(rivals, widest, best.rad)
    dev = None if best.dev is None else best.dev.masked_fill(rivals, 0.0)
    value = Ball(best.mid, rad, x.unit, dev=dev, fresh=torch.where(rivals, widest, 0.0))
    return value, index.squeeze(-1), rivals


def _chosen(call: Call) -> Sequence[Ball | None]:
    """``max``/``min`` along a dim: an index is known if no other element can reach it."""
    dim = call["dim"]
    value, index, rivals = _largest(call.ball("self"), [dim], 1 if call.name == "max" else -1)
    # Of exact ties a kernel may take another than argmax did: then both are the same number.
    chosen = Ball(index.double(), torch.where(rivals, torch.inf, 0.0), call.unit.exact())
    return [ball.map(lambda t: t.unsqueeze(dim)) if call.keepdim else ball for ball in (value, chosen)]


# -- reductions --------------------------------------------------------------------------------------------


def _sum(call: Call) -> Ball:
    return call.ball("self").sum(call.dims(), keepdim=call.keepdim)


def _mean(call: Call) -> Ball:
    return call.ball("self").mean(call.dims(), keepdim=call.keepdim)


def _cumsum(call: Call) -> Ball:
    x, dim = call.ball("self"), call["dim"]
    if not x.mid.ndim:
        return x
    shape = [1] * x.mid.ndim
    shape[dim] = -1
    earlier = torch.arange(x.mid.shape[dim], dtype=torch.float64, device=x.mid.device).view(shape)
    mass = x.mass.cumsum(dim)
    dev = None if x.dev is None else x.dev.cumsum(dim % x.mid.ndim + 1)
    rounding = x.unit.u * earlier * mass
    rad = x.rad.cumsum(dim) + rounding
    return Ball(x.mid.cumsum(dim), rad, x.unit, mass=mass, dev=dev, fresh=rounding)


def _variance(call: Call) -> Sequence[Ball | None]:
    x = call.ball("self")
    dims = call.dims() or list(range(x.mid.ndim))
    mean, var = x.moments(dims)
    count = x.mid.numel() / max(1, mean.mid.numel())
    correction = call.args.get("correction")
    if correction is None:
        correction = 1 if call.args.get("unbiased", True) else 0
    var = var.scale(count / (count - float(correction))) if count > float(correction) else var
    outputs = [var.sqrt() if call.name.startswith("std") else var, mean]
    if not call.keepdim:
        outputs = [ball.map(lambda t: t.squeeze(dims)) for ball in outputs]
    return outputs if call.name.endswith("_mean") else outputs[:1]


def _norm(call: Call) -> Ball:
    """Norms of order 1, 2 and ∞; |‖x'‖ − ‖x‖| ≤ ‖x' − x‖ where the root of the sum has no derivative."""
    x, order = call.ball("self"), float(call.args.get("ord", call.args.get("p", 2)))
    dims = call.dims() or list(range(x.mid.ndim))
    if order == 2.0:
        return (x * x).sum(dims, keepdim=call.keepdim).sqrt()
    if order == 1.0:
        size = x.bent(x.mid.abs(), x.mid.sign(), x.mid.abs() > 2 * x.rad)
        return size.sum(dims, keepdim=call.keepdim)
    if order == math.inf:
        return Ball(x.mid.abs().amax(dims, call.keepdim), x.rad.amax(dims, call.keepdim), x.unit)
    raise NotImplementedError(f"a norm of order {order}")


def _amax(call: Call) -> Ball:
    x = call.ball("self")
    dims = call.dims() or list(range(x.mid.ndim))
    value, _, _ = _largest(x, dims, 1 if call.name in {"amax", "max"} else -1)
    if not call.keepdim:
        return value
    shape = [1 if dim in {d % x.mid.ndim for d in dims} else n for dim, n in enumerate(x.mid.shape)]
    return value.map(lambda t: t.reshape(shape))


# -- matrix products ---------------------------------------------------------------------------------------


def _matmul(first: str, second: str) -> Rule:
    return lambda call: call.ball(first).matmul(call.ball(second))


def _addmm(first: str, second: str) -> Rule:
    """β·C + α·A·B: C may be the accumulator's first value, so its rounding happens n + 1 times."""

    def rule(call: Call) -> Ball:
        a, b = call.ball(first), call.ball(second)
        alpha, beta = float(call["alpha"]), float(call["beta"])
        exact = call.unit.exact()
        total = a.at(exact).matmul(b.at(exact), count=0).stretched(alpha)
        size = abs(alpha) * (a.top @ b.top)
        if beta:
            base = call.ball("self")
            total, size = total + base.at(exact).stretched(beta), size + abs(beta) * base.top
        count = a.mid.shape[-1] + 1 + 2 * (alpha != 1) + 2 * (beta not in (0, 1))
        rounding = call.unit.rounding(size, count)
        return Ball(total.mid, total.rad + rounding, call.unit, dev=total.dev, fresh=rounding)

    return rule


def _tanh_slope(x: Tensor) -> Tensor:
    return x.cosh().pow(-2)


def _sigmoid_slope(x: Tensor) -> Tensor:
    return x.sigmoid() * (-x).sigmoid()


_SQRT_PI = math.sqrt(math.pi)

ELEMENTWISE: Final[Mapping[str, Rule]] = MappingProxyType({
    "add": _add,
    "sub": lambda call: _add(call, -1.0),
    "rsub": _rsub,
    "mul": lambda call: call.ball("self") * call.ball("other"),
    "div": _divide,
    "true_divide": _divide,
    "neg": lambda call: -call.ball("self"),
    "abs": _abs,
    "square": lambda call: call.ball("self") * call.ball("self"),
    "reciprocal": lambda call: call.wrap(1.0) / call.ball("self"),
    "sgn": lambda call: _steps(call.ball("self"), torch.sign),
    "sign": lambda call: _steps(call.ball("self"), torch.sign),
    "floor": lambda call: _steps(call.ball("self"), torch.floor),
    "ceil": lambda call: _steps(call.ball("self"), torch.ceil),
    "round": lambda call: _steps(call.ball("self"), torch.round),
    "trunc": lambda call: _steps(call.ball("self"), torch.trunc),
    "exp": lambda call: call.ball("self").exp(),
    "log": lambda call: call.ball("self").log(),
    "expm1": _expm1,
    "log1p": _log1p,
    "sqrt": lambda call: call.ball("self").sqrt(),
    "rsqrt": lambda call: call.ball("self").rsqrt(),
    "sin": _smooth(torch.sin, torch.cos, 1.0),
    "cos": _smooth(torch.cos, torch.sin, 1.0),
    "erf": _smooth(torch.erf, lambda x: 2 / _SQRT_PI * (-x * x).exp(), 0.97),
    "tanh": _smooth(torch.tanh, _tanh_slope, 0.77),
    "sigmoid": _smooth(torch.sigmoid, _sigmoid_slope, 0.097, times=8),
    "pow": lambda call: _pow(call) if isinstance(call["self"], Tensor) else _power_of(call),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "relu": _clamp,
    "threshold_backward": _threshold_backward,
    "maximum": _extreme,
    "minimum": _extreme,
    "lerp": _lerp,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "fill": lambda call: call.ball("value"),
})  # fmt: skip

DECISIONS: Final[Mapping[str, Rule]] = MappingProxyType(
    {name: _compare(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
    | {
        name: _logical
        for stem in ("and", "or", "xor", "not")
        for name in (f"logical_{stem}", f"bitwise_{stem}", f"__{stem}__")
    }
    | {"where": _where, "masked_fill": _masked_fill, "isnan": _special, "isinf": _special}
)

REDUCTIONS: Final[Mapping[str, Rule]] = MappingProxyType({
    "sum": _sum,
    "mean": _mean,
    "cumsum": _cumsum,
    "var": _variance,
    "std": _variance,
    "var_mean": _variance,
    "std_mean": _variance,
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "amax": _amax,
    "amin": _amax,
    "max": lambda call: _chosen(call) if "dim" in call.args else _amax(call),
    "min": lambda call: _chosen(call) if "dim" in call.args else _amax(call),
    "mm": _matmul("self", "mat2"),
    "bmm": _matmul("self", "mat2"),
    "mv": _matmul("self", "vec"),
    "dot": _matmul("self", "tensor"),
    "addmm": _addmm("mat1", "mat2"),
    "addmv": _addmm("mat", "vec"),
    "baddbmm": _addmm("batch1", "batch2"),
})  # fmt: skip
