"""Error rules of kernels that fuse a whole formula: activations, softmax, attention, losses, convolutions.

Each rule evaluates the kernel's formula in `Ball` arithmetic on the kernel's real inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from pipeconform.bounds.ball import Ball
from pipeconform.bounds.moves import scatter_sum
from pipeconform.bounds.norms import channels
from pipeconform.bounds.rules import Call, Rule

# -- activations -------------------------------------------------------------------------------------------

_NORMAL = 1 / math.sqrt(2 * math.pi)
_CUBE, _ROOT = 0.044715, math.sqrt(2 / math.pi)


def _gelu_slope(x: Tensor, approximate: str) -> Tensor:
    if approximate == "none":
        cdf: Tensor = torch.special.ndtr(x)
        return cdf + x * _NORMAL * (-x * x / 2).exp()
    inner = (_ROOT * (x + _CUBE * x**3)).tanh()
    return 0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * _ROOT * (1 + 3 * _CUBE * x * x)


def _gelu(call: Call) -> Ball:
    """x·Φ(x), |f''| < 1; 1 + erf cancels for x < 0, so kernels err by a few u of |x|, not of |f|."""
    x, kind = call.ball("self"), call.args.get("approximate", "none")
    value = torch.nn.functional.gelu(x.mid, approximate=kind)
    return x.smooth(value, _gelu_slope(x.mid, kind), 1.0, times=8, magnitude=x.top)


def _gelu_backward(call: Call) -> Ball:
    """g·f'(x), the next derivative is below 2; the tanh form multiplies a cancelling 1 − t² by up to |x|³."""
    grad, x, kind = call.ball("grad_output"), call.ball("self"), call.args.get("approximate", "none")
    size = 1 + x.top + (0.2 * x.top**3 if kind == "tanh" else 0)
    step = (
        2.0**-17
    )  # a central difference of a function with bounded derivatives; its error is far below its use
    bend = (_gelu_slope(x.mid + step, kind) - _gelu_slope(x.mid - step, kind)) / (2 * step)
    return grad * x.smooth(_gelu_slope(x.mid, kind), bend, 2.0, times=8, magnitude=size)


def _silu(call: Call) -> Ball:
    """x·σ(x) with |f''| ≤ 1/2."""
    x = call.ball("self")
    sigmoid = x.mid.sigmoid()
    return x.smooth(x.mid * sigmoid, sigmoid * (1 + x.mid * (1 - sigmoid)), 0.5, times=8)


def _silu_backward(call: Call) -> Ball:
    """g·f'(x) with f'' = σ(1−σ)(2 + x(1−2σ)), whose slope is at most 1."""
    grad, x = call.ball("grad_output"), call.ball("self")
    sigmoid = x.mid.sigmoid()
    slope = sigmoid * (1 + x.mid * (1 - sigmoid))
    bend = sigmoid * (1 - sigmoid) * (2 + x.mid * (1 - 2 * sigmoid))
    return grad * x.smooth(slope, bend, 1.0, times=8, magnitude=sigmoid * (1 + x.top))


def _tanh_backward(call: Call) -> Ball:
    y = call.ball("output")
    return call.ball("grad_output") * (call.wrap(1.0) - y * y)


def _sigmoid_backward(call: Call) -> Ball:
    y = call.ball("output")
    return call.ball("grad_output") * ((call.wrap(1.0) - y) * y)


def _dropout(call: Call) -> Sequence[Ball | None]:
    p, mask = float(call["p"]), call.outputs[1]
    assert mask is not None
    scale = 1.0 if not call["train"] else 0.0 if p >= 1 else 1 / (1 - p)
    return [(call.ball("input") * call.wrap(mask)).scale(scale), None]


# -- softmax and attention -----------------------------------------------------------------------------------


def _exponentials(x: Ball, dim: int) -> tuple[Ball, Ball]:
    """X − max and exp(x − max): any shift cancels exactly, so it adds no error."""
    peak = x.mid.amax(dim, keepdim=True)
    peak = torch.where(peak.isfinite(), peak, 0.0)
    shifted = x - Ball.exact(peak, x.unit)
    return shifted, shifted.exp()


def _softmax_of(x: Ball, dim: int) -> Ball:
    _, exponential = _exponentials(x, dim)
    return exponential / exponential.sum([dim], keepdim=True)


def _softmax(call: Call) -> Ball:
    x = call.ball("self")
    if not x.mid.ndim:
        return Ball.exact(torch.ones_like(x.mid), call.unit)
    y = _softmax_of(x, call["dim"])
    if call.name == "_safe_softmax":  # a row of −inf only gives zeros
        blank = (x.mid == -torch.inf).all(call["dim"], keepdim=True)
        y = y.map(lambda t: t.masked_fill(blank, 0.0))
    return y


def _log_softmax(call: Call) -> Ball:
    x, dim = call.ball("self"), call["dim"]
    if not x.mid.ndim:
        return Ball.exact(torch.zeros_like(x.mid), call.unit)
    shifted, exponential = _exponentials(x, dim)
    return shifted - exponential.sum([dim], keepdim=True).log()


def _logsumexp(call: Call) -> Ball:
    x, dims = call.ball("self"), call.dims()
    peak = x.mid.amax(dims, keepdim=True)
    peak = torch.where(peak.isfinite(), peak, 0.0)
    shift = Ball.exact(peak, x.unit)
    total = (x - shift).exp().sum(dims, keepdim=True).log() + shift
    return total if call.keepdim else total.map(lambda t: t.squeeze(dims))


def _softmax_backward(call: Call) -> Ball:
    """y·(g − Σg·y); some kernels multiply out, with the same magnitudes."""
    grad, y, dim = call.ball("grad_output"), call.ball("output"), call["dim"]
    if not y.mid.ndim:
        return y.scale(0.0)
    return (grad - (grad * y).sum([dim], keepdim=True)) * y


def _log_softmax_backward(call: Call) -> Ball:
    grad, y, dim = call.ball("grad_output"), call.ball("output"), call["dim"]
    if not y.mid.ndim:
        return y.scale(0.0)
    return grad - y.exp() * grad.sum([dim], keepdim=True)


def _scores(call: Call, query: Ball, key: Ball) -> Ball:
    """scale·QKᵀ + mask, with −inf where a query must not attend."""
    scale = call.args.get("scale")
    scale = 1 / math.sqrt(query.mid.shape[-1]) if scale is None else float(scale)
    scores = (
        query.matmul(key.map(lambda t: t.mT)).scale(scale).rounded(2)
    )  # q or k may be scaled, by √scale each
    mask = call.maybe("attn_mask")
    if mask is not None and call["attn_mask"].dtype == torch.bool:
        raise NotImplementedError("a boolean mask inside the kernel")
    scores = scores if mask is None else scores + mask
    if call.args.get("is_causal"):
        hidden = torch.ones_like(scores.mid, dtype=torch.bool).triu(1)
        never = torch.where(hidden, -torch.inf, 0.0).to(scores.mid.dtype)
        scores = Ball(
            scores.mid + never,
            scores.rad,
            scores.unit,
            mass=scores.mass,
            dev=scores.dev,
            fresh=scores.rad * 0,
        )
    return scores


def _repeated(ball: Ball, groups: int) -> Ball:
    """Keys or values with each head repeated for the `groups` query heads that share it."""
    return ball if groups == 1 else ball.map(lambda t: t.repeat_interleave(groups, -3))


def _shared(ball: Ball, groups: int) -> Ball:
    """The gradient of shared heads: the sum over the query heads of each group."""
    if groups == 1:
        return ball
    *lead, heads, keys, width = ball.mid.shape
    return ball.map(lambda t: t.reshape(*lead, heads // groups, groups, keys, width)).sum([-3])


def _groups(query: Ball, key: Ball) -> int:
    return int(query.mid.shape[-3] // key.mid.shape[-3])


def _attention(call: Call) -> Sequence[Ball | None]:
    """softmax(QKᵀ)·V block by block: each of up to n blocks rescales what precedes it (4 roundings each)."""
    query, key, value = (call.ball(name) for name in ("query", "key", "value"))
    groups = _groups(query, key)
    key, value = _repeated(key, groups), _repeated(value, groups)
    if call.args.get("dropout_p"):
        raise NotImplementedError("dropout inside the kernel")
    scores = _scores(call, query, key)
    shifted, exponential = _exponentials(scores, -1)
    total = exponential.sum([-1], keepdim=True)
    count = 4 * key.mid.shape[-2] + 8
    total = total.rounded(count)
    output = exponential.matmul(value, count=count) / total
    peak = scores.mid - shifted.mid
    peak = torch.nan_to_num(peak, nan=-torch.inf).amax(-1)
    lse = total.map(lambda t: t.squeeze(-1)).log() + Ball.exact(peak, call.unit)
    return [output, lse]


def _attention_backward(call: Call) -> Sequence[Ball | None]:
    """P = exp(S − lse), dV = Pᵀ·dO, dS = P∘(dO·Vᵀ − Σ dO∘O), dQ = scale·dS·K, dK = scale·dSᵀ·Q."""
    grad, query, key, value, out = (call.ball(n) for n in ("grad_out", "query", "key", "value", "out"))
    groups = _groups(query, key)
    key, value = _repeated(key, groups), _repeated(value, groups)
    if call.args.get("dropout_p"):
        raise NotImplementedError("dropout inside the kernel")
    lse = call.ball("logsumexp").map(lambda t: t.unsqueeze(-1))
    probability = (_scores(call, query, key) - lse).exp()
    delta = (grad * out).sum([-1], keepdim=True)
    slope = probability * (grad.matmul(value.map(lambda t: t.mT)) - delta)
    scale = call.args.get("scale")
    slope = slope.scale(1 / math.sqrt(query.mid.shape[-1]) if scale is None else float(scale))
    into_key, into_value = (
        # of shared heads, the terms of all query heads may be added in any order
        _shared(left.map(lambda t: t.mT).matmul(right, count=groups * query.mid.shape[-2]), groups)
        for left, right in ((slope, query), (probability, grad))
    )
    return [slope.matmul(key), into_key, into_value]


# -- losses --------------------------------------------------------------------------------------------------


def _reduced(loss: Ball, reduction: int) -> Ball:
    return loss if reduction == 0 else loss.mean([]) if reduction == 1 else loss.sum([])


def _mse_loss(call: Call) -> Ball:
    difference = call.ball("self") - call.ball("target")
    return _reduced(difference * difference, call["reduction"])


def _mse_loss_backward(call: Call) -> Ball:
    difference = call.ball("self") - call.ball("target")
    factor = 2 / difference.mid.numel() if call["reduction"] == 1 else 2.0
    return (difference.scale(factor) * call.ball("grad_output")).rounded(2)


def _class_weights(call: Call, target: Tensor) -> Ball:
    """Each target's weight, 0 where it is ignored."""
    kept = (target != call["ignore_index"]).double()
    weights = Ball.exact(kept, call.unit)
    given = call.maybe("weight")
    if given is None:
        return weights
    index = target.clamp(min=0)
    return weights * given.map(lambda t: t[index])


def _nll_loss(call: Call) -> Sequence[Ball | None]:
    """−Σ w·x[target] / Σ w over the class dim (1, or 0 without a batch)."""
    x, target = call.ball("self"), call["target"]
    weights, dim = _class_weights(call, target), 1 if x.mid.ndim > 1 else 0
    index = target.clamp(min=0).unsqueeze(dim)
    loss = -(x.map(lambda t: t.gather(dim, index).squeeze(dim)) * weights)
    if call["reduction"] == 0:
        return [loss, weights.sum([]).scale(0.0)]
    total = weights.sum([])
    return [loss.sum([]) / total if call["reduction"] == 1 else loss.sum([]), total]


def _nll_loss_backward(call: Call) -> Ball:
    grad, x, target = call.ball("grad_output"), call["self"], call["target"]
    dim = 1 if x.ndim > 1 else 0
    share = -_class_weights(call, target)
    share = share / call.ball("total_weight") if call["reduction"] == 1 else share
    share = share * grad
    index = target.clamp(min=0).unsqueeze(dim)
    zeros = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    return share.map(lambda t: zeros.scatter(dim, index, t.unsqueeze(dim)))


# -- embedding, convolution, pooling -------------------------------------------------------------------------


def _embedding_backward(call: Call) -> Ball:
    grad, indices = call.ball("grad_output"), call["indices"]
    if call["scale_grad_by_freq"]:
        raise NotImplementedError("gradients scaled by frequency")
    width, rows = grad.mid.shape[-1], int(call["num_weights"])
    kept = (indices != call["padding_idx"]).reshape(-1)
    index = indices.reshape(-1)[kept]

    def add(_: Tensor | None, part: Tensor) -> Tensor:
        start = torch.zeros(rows, width, dtype=part.dtype, device=part.device)
        return start.index_add(0, index, part)

    return scatter_sum(None, grad.map(lambda t: t.reshape(-1, width)[kept]), add)


def _convolution(call: Call) -> Ball:
    x, weight, bias = call.ball("input"), call.ball("weight"), call.maybe("bias")
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    rest = [call[name] for name in names]

    def run(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.aten.convolution(a, b, None, *rest)  # type: ignore[no-any-return]

    count = weight.mid.numel() / min(weight.mid.shape[:2])
    product = x.product(weight, run, count + 1)
    if bias is None:
        return product
    offset = channels(bias, product)
    # The bias may be the accumulator's first value.
    return (product + offset).plus(call.unit.rounding(offset.top, count).expand_as(product.mid))


def _convolution_backward(call: Call) -> Sequence[Ball | None]:
    grad, x, weight = (call.ball(n) for n in ("grad_output", "input", "weight"))
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    rest = [call[name] for name in names]

    def kernel(g: Tensor, a: Tensor, w: Tensor, which: int) -> Tensor:
        mask = [which == 0, which == 1, False]
        result: Tensor = torch.ops.aten.convolution_backward(g, a, w, None, *rest, mask)[which]
        return result

    count = weight.mid.numel() / min(weight.mid.shape[:2])
    points = grad.mid.numel() / max(1, grad.mid.shape[1]) + x.mid.numel() / max(1, x.mid.shape[1])
    return [
        grad.product(weight, lambda g, w: kernel(g, x.mid, w, 0), count),
        grad.product(x, lambda g, a: kernel(g, a, weight.mid, 1), points),
        grad.sum([dim for dim in range(grad.mid.ndim) if dim != 1]),
    ]


def _pool(call: Call) -> Ball:
    """Average pooling and its backward: linear, with weights of one sign."""
    names = [argument.name for argument in call.overload._schema.arguments]
    x = call.ball(names[0])
    rest = [call[n].double() if isinstance(call[n], Tensor) else call[n] for n in names[1:]]
    rad, top, mid = (call.overload(part, *rest) for part in (x.rad, x.top, x.mid))
    dev = None if x.dev is None else torch.stack([call.overload(sample, *rest) for sample in x.dev])
    rounding = call.unit.rounding(top, math.prod(call["kernel_size"]) + 2)
    return Ball(mid, rad + rounding, call.unit, dev=dev, fresh=rounding)


KERNELS: Final[Mapping[str, Rule]] = MappingProxyType({
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "silu": _silu,
    "silu_backward": _silu_backward,
    "tanh_backward": _tanh_backward,
    "sigmoid_backward": _sigmoid_backward,
    "native_dropout": _dropout,
    "_softmax": _softmax,
    "_safe_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _log_softmax_backward,
    "logsumexp": _logsumexp,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "mse_loss": _mse_loss,
    "mse_loss_backward": _mse_loss_backward,
    "nll_loss_forward": _nll_loss,
    "nll_loss2d_forward": _nll_loss,
    "nll_loss_backward": _nll_loss_backward,
    "nll_loss2d_backward": _nll_loss_backward,
    "embedding_dense_backward": _embedding_backward,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "avg_pool2d": _pool,
    "avg_pool2d_backward": _pool,
})  # fmt: skip

# Kernels that evaluate exactly the formula of their decomposition in ``torch._decomp``, element by element (or followed
# by a plain sum or mean): the decomposition runs under the analysis itself.
DECOMPOSED: Final = frozenset(
    [
        "binary_cross_entropy",
        "binary_cross_entropy_backward",
        "binary_cross_entropy_with_logits",
        "celu",
        "elu",
        "elu_backward",
        "glu",
        "glu_backward",
        "hardsigmoid",
        "hardsigmoid_backward",
        "hardswish",
        "hardswish_backward",
        "hardtanh",
        "hardtanh_backward",
        "huber_loss",
        "huber_loss_backward",
        "leaky_relu",
        "leaky_relu_backward",
        "log_sigmoid_backward",
        "log_sigmoid_forward",
        "mish",
        "mish_backward",
        "native_dropout_backward",
        "smooth_l1_loss",
        "smooth_l1_loss_backward",
        "softplus",
        "softplus_backward",
        "soft_margin_loss",
        "soft_margin_loss_backward",
        "xlogy",
    ]
)
