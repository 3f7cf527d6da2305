"""Error rules of layer, batch and group normalisation, forward and backward.

Kernels follow one of two formulas (CPU layer norm computes ``x·s + t``, others ``(x − mean)·rstd·w + b``); the radius
covers both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch

from pipeconform.bounds.ball import Ball, either
from pipeconform.bounds.rules import Call, Rule


def _normalise(x: Ball, mean: Ball, rstd: Ball, weight: Ball | None = None, bias: Ball | None = None) -> Ball:
    """(x − mean)·rstd·w + b, or x·s + t with s = rstd·w, t = b − mean·s."""
    centred = (x - mean) * rstd
    centred = centred if weight is None else centred * weight
    centred = centred if bias is None else centred + bias

    def affine() -> Ball:
        slope = rstd.exactly() if weight is None else rstd.exactly() * weight.exactly()
        shift = -(mean.exactly() * slope)
        return x.exactly() * slope + (shift if bias is None else bias.exactly() + shift)

    return either(centred, affine, count=4)


def _normalise_backward(
    grad: Ball, x: Ball, *, mean: Ball, rstd: Ball, weight: Ball | None, dims: Sequence[int]
) -> Ball:
    """The input's gradient, from centred values or from the sums Σg·x and Σg (as CPU layer norm does)."""
    grad = grad if weight is None else grad * weight
    normal = (x - mean) * rstd
    inner = grad - grad.mean(dims, keepdim=True) - normal * (grad * normal).mean(dims, keepdim=True)
    count = max(1.0, grad.mid.numel() / max(1, rstd.mid.numel()))  # an empty batch has none

    def sums() -> Ball:
        g, v, m, r = (ball.exactly() for ball in (grad, x, mean, rstd))
        total, against = g.sum(dims, keepdim=True), (g * v).sum(dims, keepdim=True)
        slope = ((total * m - against) * r * r * r).scale(1 / count)
        return g * r + slope * v + (-(slope * m) - (total * r).scale(1 / count))

    return either(inner * rstd, sums, count=count)


def _layer_norm(call: Call) -> Sequence[Ball | None]:
    x = call.ball("input")
    dims = list(range(-len(call["normalized_shape"]), 0))
    mean, var = x.moments(dims)
    eps = float(call["eps"])
    rstd = (var + call.wrap(eps)).rsqrt(at_least=0.99 * eps)
    return [_normalise(x, mean, rstd, call.maybe("weight"), call.maybe("bias")), mean, rstd]


def _layer_norm_backward(call: Call) -> Sequence[Ball | None]:
    grad, x, mean, rstd = (call.ball(n) for n in ("grad_out", "input", "mean", "rstd"))
    size = len(call["normalized_shape"])
    dims, outer = list(range(-size, 0)), list(range(x.mid.ndim - size))

    def over(ball: Ball) -> Ball:
        return ball.sum(outer) if outer else ball

    return [
        _normalise_backward(grad, x, mean=mean, rstd=rstd, weight=call.maybe("weight"), dims=dims),
        over(grad * _normalise(x, mean, rstd)),
        over(grad),
    ]


def channels(ball: Ball, like: Ball) -> Ball:
    """One value per channel (dim 1), shaped to broadcast against `like`."""
    shape = [-1 if dim == 1 else 1 for dim in range(like.mid.ndim)]
    return ball.map(lambda t: t.reshape(shape))


def _optional(call: Call, name: str, like: Ball) -> Ball | None:
    ball = call.maybe(name)
    return None if ball is None else channels(ball, like)


def _batch_norm(call: Call) -> Sequence[Ball | None]:
    """Outputs, saved mean and invstd, then the running mean and variance, which are updated in place."""
    x, eps = call.ball("input"), float(call["eps"])
    dims = [dim for dim in range(x.mid.ndim) if dim != 1]
    weight, bias = _optional(call, "weight", x), _optional(call, "bias", x)
    running = [call.maybe("running_mean"), call.maybe("running_var")]
    if not call["training"]:
        mean, var = (channels(call.ball(name), x) for name in ("running_mean", "running_var"))
        rstd = (var + call.wrap(eps)).rsqrt(at_least=0.99 * eps)
        return [_normalise(x, mean, rstd, weight, bias), None, None, *running]
    mean, var = x.moments(dims)
    rstd = (var + call.wrap(eps)).rsqrt(at_least=0.99 * eps)
    count = x.mid.numel() / max(1, mean.mid.numel())
    momentum = float(call["momentum"])
    flat_mean, flat_rstd, batch_var = (ball.map(torch.flatten) for ball in (mean, rstd, var))
    batch = [flat_mean, batch_var.scale(count / max(1.0, count - 1))]
    updated = [
        None if old is None else new.scale(momentum) + old.scale(1 - momentum)
        for old, new in zip(running, batch, strict=True)
    ]
    return [_normalise(x, mean, rstd, weight, bias), flat_mean, flat_rstd, *updated]


def _batch_norm_backward(call: Call) -> Sequence[Ball | None]:
    grad, x = call.ball("grad_out"), call.ball("input")
    dims = [dim for dim in range(x.mid.ndim) if dim != 1]
    weight = _optional(call, "weight", x)
    if call["train"]:
        mean, rstd = channels(call.ball("save_mean"), x), channels(call.ball("save_invstd"), x)
        into = _normalise_backward(grad, x, mean=mean, rstd=rstd, weight=weight, dims=dims)
    else:
        mean, var = channels(call.ball("running_mean"), x), channels(call.ball("running_var"), x)
        rstd = (var + call.wrap(float(call["eps"]))).rsqrt(at_least=0.99 * float(call["eps"]))
        into = grad * (rstd if weight is None else rstd * weight)
    normal = _normalise(x, mean, rstd)
    return [into, (grad * normal).sum(dims), grad.sum(dims)]


def _in_groups(ball: Ball, groups: int) -> Ball:
    """The values of each group of channels in one dimension, also of an empty batch."""
    samples, *rest = ball.mid.shape
    return ball.map(lambda t: t.reshape(samples, groups, math.prod(rest) // groups))


def _group_norm(call: Call) -> Sequence[Ball | None]:
    """The channels-last CPU kernel computes the variance as E[x²] − mean²."""
    x, eps, groups = call.ball("input"), float(call["eps"]), int(call["group"])
    shape = x.mid.shape
    grouped = _in_groups(x, groups)
    mean, var = grouped.moments([2], one_pass=True)
    rstd = (var + call.wrap(eps)).rsqrt(at_least=0.99 * eps)
    wide_mean, wide_rstd = (b.map(lambda t: t.expand_as(grouped.mid).reshape(shape)) for b in (mean, rstd))
    weight, bias = _optional(call, "weight", x), _optional(call, "bias", x)
    return [
        _normalise(x, wide_mean, wide_rstd, weight, bias),
        mean.map(lambda t: t[..., 0]),
        rstd.map(lambda t: t[..., 0]),
    ]


def _group_norm_backward(call: Call) -> Sequence[Ball | None]:
    grad, x, groups = call.ball("grad_out"), call.ball("input"), int(call["group"])
    shape, weight = x.mid.shape, _optional(call, "weight", x)
    weighted = grad if weight is None else grad * weight

    mean, rstd = (call.ball(n).map(lambda t: t.reshape(shape[0], groups, 1)) for n in ("mean", "rstd"))
    grouped = _in_groups(x, groups)
    into = _normalise_backward(
        _in_groups(weighted, groups), grouped, mean=mean, rstd=rstd, weight=None, dims=[2]
    )
    normal = _normalise(grouped, mean, rstd).map(lambda t: t.reshape(shape))
    dims = [dim for dim in range(x.mid.ndim) if dim != 1]
    # dγ by Σ(g·x − g·mean)·rstd: the same magnitudes as through x·s + t.
    return [into.map(lambda t: t.reshape(shape)), (grad * normal).sum(dims), grad.sum(dims)]


NORMS: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "native_layer_norm": _layer_norm,
        "native_layer_norm_backward": _layer_norm_backward,
        "native_batch_norm": _batch_norm,
        "_native_batch_norm_legit": _batch_norm,
        "native_batch_norm_backward": _batch_norm_backward,
        "native_group_norm": _group_norm,
        "native_group_norm_backward": _group_norm_backward,
    }
)
