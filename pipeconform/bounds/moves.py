"""Error rules of operations that move elements, convert them, or add up elements sent to the same place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from pipeconform.bounds.ball import Ball
from pipeconform.bounds.rules import Call, Rule


def move(call: Call) -> Sequence[Ball | None]:
    """The same movement on values, radii and masses; conversion to a narrower dtype rounds once."""
    skip = {"out", "dtype", "memory_format", "non_blocking", "device", "layout", "pin_memory"}
    arguments = {name: value for name, value in call.args.items() if name not in skip}
    balls = [call.lookup(t) for t in tensors_in(tuple(arguments.values())) if t.is_floating_point()]
    overload = functional(call)

    def moved(*parts: Tensor, fill: Tensor | float = 0.0) -> tuple[Tensor, ...]:
        queue = iter(parts)

        def swap(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [swap(item) for item in value]
            return next(queue) if isinstance(value, Tensor) and value.is_floating_point() else value

        swapped = {name: swap(value) for name, value in arguments.items()}
        if isinstance(swapped.get("value"), float | int):
            swapped["value"] = float(fill)  # a constant that fills
        result = overload(**swapped)
        return tuple(result) if isinstance(result, (list, tuple)) else (result,)

    constant = call.args.get("value")
    doubt = call.wrap(constant).rad if isinstance(constant, float | int) else 0.0
    rads = moved(*(ball.rad for ball in balls), fill=doubt)
    filled = moved(*(torch.zeros_like(ball.rad) for ball in balls), fill=doubt)
    masses = moved(*(ball.mass for ball in balls))
    devs: Sequence[Tensor | None] = [None] * len(rads)
    if any(ball.dev is not None for ball in balls):
        count = call.unit.sampler.count
        every = [
            ball.mid.new_zeros(1).expand(count, *ball.mid.shape) if ball.dev is None else ball.dev
            for ball in balls
        ]
        # Not vmap: some movements (by a mask) have shapes that depend on data.
        devs = [
            torch.stack(part)
            for part in zip(*(moved(*sample) for sample in zip(*every, strict=True)), strict=True)
        ]
    terms = max((ball.terms for ball in balls), default=1)
    narrower = any(ball.unit.u < call.unit.u for ball in balls)
    fixed = all(ball.fixed for ball in balls) and not narrower
    result: list[Ball | None] = []
    for out, rad, fill, most, dev in zip(call.outputs, rads, filled, masses, devs, strict=True):
        assert out is not None
        mid = out.double()
        fresh = fill + call.unit.rounding(mid.abs() + 2 * rad, float(narrower))
        mass = torch.maximum(most, mid.abs())  # constants that fill count with their magnitude
        own = fixed and not bool(fresh.any())
        ball = Ball(mid, rad + fresh, call.unit, mass=mass, terms=terms, dev=dev, fresh=fresh, fixed=own)
        result.append(ball)
    return result


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def functional(call: Call) -> Any:
    """The overload that returns a new tensor, for an in-place or ``out=`` one."""
    if not call.overload._schema.is_mutable:
        return call.overload
    packet, name = getattr(torch.ops.aten, call.name), call.overload._overloadname
    name = name.removesuffix("out").removesuffix("_")  # ``src_out`` writes what ``src`` returns
    return getattr(packet, name if name in packet.overloads() else "default")


def _convert(call: Call) -> Ball:
    """``_to_copy``, ``clone`` and ``copy_``: narrowing rounds; conversion to an integer may jump if uncertain."""
    source = call.lookup(call.args.get("src", call["self"]))
    out = call.outputs[0]
    assert out is not None
    if not out.is_floating_point():
        return Ball(out.double(), torch.where(source.rad > 0, source.rad + 1, 0.0), call.unit)
    wide = source.unit.u >= call.unit.u and source.unit.tiny >= call.unit.tiny
    if wide or (not source.unit.u and bool((source.top * call.unit.u <= 1).all())):
        return source.at(call.unit)
    return source.at(call.unit).rounded()


def scatter_sum(base: Ball | None, source: Ball, add: Callable[[Tensor | None, Tensor], Tensor]) -> Ball:
    """Σ of elements sent to the same place, in any order: `add(start, contributions)` does the sending."""
    parts = [None] * 3 if base is None else [base.mid, base.rad, base.mass]
    mid, rad, mass = (
        add(start, part) for start, part in zip(parts, (source.mid, source.rad, source.mass), strict=True)
    )
    count = add(None, torch.ones_like(source.mid))
    rounding = source.unit.u * (count if base is not None else count - 1).clamp(min=0) * mass
    dev = None if source.dev is None else torch.stack([add(None, sample) for sample in source.dev])
    if base is not None and base.dev is not None:
        dev = base.dev if dev is None else base.dev + dev
    return Ball(mid, rad + rounding, source.unit, mass=mass, dev=dev, fresh=rounding)


def _index_put(call: Call) -> Ball:
    base, values = call.ball("self"), call.ball("values")
    indices = list(call["indices"])

    def put(start: Tensor | None, part: Tensor) -> Tensor:
        start = torch.zeros_like(base.mid) if start is None else start
        result: Tensor = torch.ops.aten.index_put(start, indices, part, bool(call["accumulate"]))
        return result

    if call["accumulate"]:
        return scatter_sum(base, values, put)
    return Ball(put(base.mid, values.mid), put(base.rad, values.rad), call.unit)


def _scatter_add(call: Call) -> Ball:
    base, source = call.ball("self"), call.ball("source" if "source" in call.args else "src")
    scatter = torch.scatter_add if call.name == "scatter_add" else torch.index_add
    alpha = float(call.args.get("alpha", 1))
    source = source if alpha == 1 else source.scale(alpha)

    def put(start: Tensor | None, part: Tensor) -> Tensor:
        start = torch.zeros_like(base.mid) if start is None else start
        return scatter(start, call["dim"], call["index"], part)

    return scatter_sum(base, source, put)


MOVEMENTS: Final[Mapping[str, Rule]] = MappingProxyType(
    dict.fromkeys(
        [
            "cat",
            "stack",
            "embedding",
            "index_select",
            "gather",
            "index",
            "index_fill",
            "flip",
            "roll",
            "repeat",
            "constant_pad_nd",
            "tril",
            "triu",
            "slice_backward",
            "select_backward",
            "diagonal_backward",
            "slice_scatter",
            "select_scatter",
            "scatter",
            "masked_select",
            "_unsafe_view",
            "unsafe_split",
            "unsafe_split_with_sizes",
            "unsafe_chunk",
            "split_copy",
            "unbind_copy",
        ],
        move,
    )
    | dict.fromkeys(("_to_copy", "clone", "copy", "contiguous"), _convert)
    | {"index_put": _index_put, "_index_put_impl": _index_put, "_unsafe_index_put": _index_put}
    | {"scatter_add": _scatter_add, "index_add": _scatter_add}
)

# Tensors filled with constants or random numbers are data, and the same in every evaluation.
CONSTANTS: Final = frozenset(
    [
        "arange",
        "empty",
        "empty_like",
        "empty_strided",
        "exponential",
        "eye",
        "full",
        "full_like",
        "linspace",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "normal",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randint",
        "randn",
        "randn_like",
        "randperm",
        "random",
        "scalar_tensor",
        "uniform",
        "zero",
        "zeros",
        "zeros_like",
        "bernoulli",
    ]
)
