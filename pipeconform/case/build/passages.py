"""Makes and uses passages: tensors that one stage makes for later ones."""

from __future__ import annotations

from torch import Tensor, float8_e4m3fn, float32, float64, view_as_real
from torch import complex as complex_of

from pipeconform.case.case import Model, Passage, PassageKind

__all__ = ["arriving", "leaving", "make", "use"]


def arriving(model: Model, stage: int) -> tuple[Passage, ...]:
    """The passages among a stage's inputs, in order."""
    return tuple(one for one in model.passages if one.source < stage <= one.last)


def leaving(model: Model, stage: int) -> tuple[Passage, ...]:
    """The passages among a stage's outputs, in order."""
    return tuple(one for one in model.passages if one.source <= stage < one.last)


def make(kind: PassageKind, x: Tensor) -> Tensor:
    """Make a passage from the main stream `x`, ``[…, W]``; the result is neither `x` nor a view of it."""
    match kind:
        case "scalar":
            return x.mean()
        case "flat":
            return x.mean(-1).reshape(-1) * 1.0
        case "single":
            return x.mean(-1)[..., None, None] * 1.0
        case "deep":
            return x.reshape(x.shape[0], 1, -1, 1, x.shape[-1]) * 1.0
        case "empty":
            return x[..., :0] * 1.0
        case "float8":
            return x.detach().clamp(-4, 4).to(float8_e4m3fn)
        case "complex" | "rotations":
            # torch has no complex numbers of 16 bits with arithmetic on every device
            wide = x if x.dtype in (float32, float64) else x.float()
            wide = wide.detach() if kind == "rotations" else wide
            return complex_of(wide * 0.75, wide * wide)
    return x * 0.75


def use(kind: PassageKind, x: Tensor, value: Tensor) -> Tensor:
    """Apply a passage to the main stream `x`, ``[…, W]``, changing it by much more than rounding unless it is empty."""
    match kind:
        case "scalar":
            return x + value
        case "flat" | "single":
            return x + value.reshape(*x.shape[:-1], 1)
        case "deep":
            return x + 0.5 * value.reshape(x.shape)
        case "empty":
            return x + value.sum()
        case "float8":
            return x + 0.5 * value.to(x.dtype)
        case "complex" | "rotations":
            # by views: nothing that is complex is added up or rounded, and each part counts in its own way
            parts = view_as_real(value).to(x.dtype)
            return x + 0.5 * parts[..., 0] + 0.25 * parts[..., 1]
        case "summed":
            return x + value.sum() * 0.25
        case "turned":
            # the same numbers in another order: the gradient that comes back is a transposed view
            return x + (value.transpose(0, -1).reshape(-1) * 0.5).reshape(x.shape)
        case "bypass":
            return value * 1.0
    return x + 0.5 * value
