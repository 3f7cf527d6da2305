"""Known relations of a stage's wrong values to the right ones.

They only describe a violation that a bound has already established; they accept nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeconform.observe.observation import Named

if TYPE_CHECKING:
    import torch

__all__ = ["fate_of_earlier_steps", "uniform_ratio"]

_CLOSE = 32
"""In units of round-off of all that is added: what another order of the additions may change."""
_CLEARLY = 4
"""How many times further off the second-best explanation must be."""


def uniform_ratio(right: Named, mine: Named) -> float | None:
    """The factor by which all of `mine` differs from `right`; None if there is no single one.

    A single number is always a multiple of another, and so are weight and bias of a map of width 1, to which the same
    wrong number was given. Of one or two numbers only whole multiples and parts count.
    """
    import torch

    names = _comparable(right, mine)
    if not names:
        return None
    a, b = _flat(right, names), _flat(mine, names)
    norm = float(a @ a)
    if norm == 0 or not torch.isfinite(b).all():
        return None
    ratio = float(a @ b) / norm
    dtype = getattr(torch, next(right[n].dtype for n in names))  # type: ignore[union-attr]
    close = float((b - ratio * a).norm()) <= 1024 * torch.finfo(dtype).eps * max(1.0, abs(ratio)) * norm**0.5
    if len(a) <= 2 and not _is_whole(ratio) and not (ratio and _is_whole(1 / ratio)):
        return None
    return ratio if close and abs(ratio - 1) > 1e-3 else None


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-6


def fate_of_earlier_steps(*, before: Named, right: Named, mine: Named, m: int) -> str:
    """In which way the gradients that steps before left, and a step without ``zero_grad`` adds to, went wrong.

    With g the gradients before the step, d what the step contributes and m its number of microbatches, g + d is right.
    The answer is ``earlier steps lost`` for d, ``earlier steps divided by m`` for g/m + d, ``earlier steps multiplied
    by m`` for m·g + d, ``earlier steps counted twice`` for 2g + d, and ``this step lost`` for g. It is empty where
    there were none before, and where none of these, or more than one, is close.

    Args:
        before: the right gradients of a stage before the step, by name.
        right: the right ones after it.
        mine: those that the implementation shows after it.
        m: how many microbatches the step had.
    """
    import torch

    names = _comparable({n: array for n, array in right.items() if before.get(n) is not None}, mine)
    if not names:
        return ""
    old, new, shown = (_flat(values, names) for values in (before, right, mine))
    if not (bool(old.any()) and bool(shown.isfinite().all())):
        return ""
    scale = float(old.norm() + (new - old).norm())
    unit = max(torch.finfo(getattr(torch, right[n].dtype)).eps for n in names)  # type: ignore[union-attr]
    off = sorted((float((shown - guess).norm()), fate) for fate, guess in _guesses(old, new - old, m))
    (best, fate), (second, _) = off[0], off[1]
    return fate if best <= _CLOSE * unit * scale and second > _CLEARLY * max(best, unit * scale) else ""


def _guesses(old: torch.Tensor, step: torch.Tensor, m: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield "earlier steps lost", step
    yield "this step lost", old
    yield "earlier steps counted twice", 2 * old + step
    if m > 1:
        yield "earlier steps divided by m", old / m + step
    if m > 2:  # with two microbatches it is the same as counting twice
        yield "earlier steps multiplied by m", m * old + step


def _comparable(right: Named, mine: Named) -> list[str]:
    """The names of the right floating-point values; none if one of them is missing, or has another shape."""
    found = {n: array for n, array in right.items() if array is not None}
    names = [n for n, array in found.items() if array.dtype.startswith(("float", "bfloat"))]
    alike = all((other := mine.get(n)) is not None and other.shape == found[n].shape for n in names)
    return names if alike else []


def _flat(values: Named, names: list[str]) -> torch.Tensor:
    import torch

    return torch.cat([array.tensor().double().reshape(-1) for n in names if (array := values[n]) is not None])
