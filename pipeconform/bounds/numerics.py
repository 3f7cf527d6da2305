"""Comparing two recorded values: bit for bit, or within an elementwise bound.

There are two classes and no tolerances (see the architecture, "Numbers have classes"):

* *bitwise*, without a bound. Any NaN equals any NaN: payloads are not arithmetic. Zeros are equal whatever
  their sign: adding a gradient to a zero-filled buffer turns −0 into +0, taking it over does not, and both
  are correct.
* *bounded*: ``|expected − actual| <= bound`` for each element; NaN only where NaN is expected, an infinity
  only where the same infinity is expected. ``running_error`` computes bounds.

This runs in the controller, on plain data, without torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pipeconform.errors import HarnessError
from pipeconform.observe.array import Array

Values = npt.NDArray[Any]
Kind = Literal["value", "dtype", "shape", "missing", "unexpected"]

# NumPy has no bfloat16; its bits are the upper half of a float32. Half precision complex is a pair of halves.
_DTYPES: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("bfloat16",), "uint16")
    | dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), "uint8")  # nothing is computed in them: bits are enough
    | {"complex32": "float16"}
    | {name: name for name in ("bool", "float16", "float32", "float64", "complex64", "complex128")}
    | {f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)

_EPS: Final[Mapping[str, float]] = MappingProxyType(
    {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
)

_HIGH: Final[Mapping[str, float]] = MappingProxyType(
    {"float64": 2.0**508, "float32": 2.0**60, "bfloat16": 2.0**60}
)
"""A sixteenth of the root of the largest number: squares of larger ones overflow soon. Not of float16, whose cases are
made so that nothing overflows but what is to."""


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """How an actual value differs from the expected one, with numbers as text so that NaN survives JSON.

    For a difference in values, `index`, `expected`, `actual`, `ulps` and `relative` are those of the first
    element that differs (that exceeds its bound). `ulps` and `relative` are None where they mean nothing
    (NaN, infinity).
    """

    kind: Kind
    expected: str | None = None
    actual: str | None = None
    index: tuple[int, ...] | None = None
    ulps: int | None = None
    relative: float | None = None
    differing: int = 0
    total: int = 0
    worst: float | None = None
    """The largest ratio of a difference to its bound; None without a bound or if it is infinite."""

    def describe(self) -> str:
        """The mismatch as a few aligned lines."""
        rows = {"expected": self.expected or "nothing", "actual": self.actual or "nothing"}
        if self.kind != "value":
            return _lines(f"{self.kind} differs" if self.kind in ("dtype", "shape") else self.kind, rows)
        where = f" at {list(self.index)}" if self.index else ""
        count = "" if self.total == 1 else f", the first of {self.differing} of {self.total}"
        steps = "" if self.ulps is None else f"{self.ulps} ulp"
        share = "" if self.relative is None else f"{self.relative:.2g} of the value"
        if steps or share:
            rows["distance"] = ", ".join(filter(None, (steps, share)))
        if self.worst is not None:
            rows["bound"] = f"exceeded up to {self.worst:.3g} times"
        return _lines(f"value differs{where}{count}", rows)


def compare(expected: Array | None, actual: Array | None, *, bound: Array | None = None) -> Mismatch | None:
    """How `actual` differs from `expected`, bit for bit or by more than `bound`; None if it does not.

    An array that is None does not exist: the value is "missing" or "unexpected".
    """
    return measure(expected, actual, bound=bound)[0]


def measure(
    expected: Array | None, actual: Array | None, *, bound: Array | None = None
) -> tuple[Mismatch | None, float]:
    """The result of `compare`, and the largest ratio of a difference to its bound (0 if values were not measured)."""
    if expected is None or actual is None:
        return _presence(expected, actual), 0.0
    if expected.dtype != actual.dtype:
        return Mismatch(kind="dtype", expected=expected.dtype, actual=actual.dtype), 0.0
    if expected.shape != actual.shape:
        shapes = str(list(expected.shape)), str(list(actual.shape))
        return Mismatch(kind="shape", expected=shapes[0], actual=shapes[1]), 0.0
    if expected.data == actual.data:
        return None, 0.0
    a, b = _values(expected), _values(actual)
    wrong, most = ~_same(a, b), 0.0
    if bound is not None:
        limit = _limit(bound, expected)
        # Not `ratios > 1`: the quotient rounds.
        wrong &= ~(_difference(a, b) <= limit) | ~np.isfinite(a) | ~np.isfinite(b)
        most = float(_ratios(a, b, limit).max(initial=0.0))
    if not wrong.any():
        return None, most
    first = int(np.flatnonzero(wrong)[0])
    mismatch = Mismatch(
        kind="value",
        expected=_text(a[first], expected.dtype),
        actual=_text(b[first], expected.dtype),
        index=tuple(int(i) for i in np.unravel_index(first, expected.shape)),
        ulps=_ulps(a[first], b[first], expected.dtype),
        relative=_relative(a[first], b[first]),
        differing=int(wrong.sum()),
        total=wrong.size,
        worst=None if bound is None else _finite(most),
    )
    return mismatch, most


def ratio(expected: Array, actual: Array, bound: Array) -> float:
    """The largest ratio of a difference to its bound; at most 1 if `compare` finds no mismatch.

    0 for equal elements whatever the bound; infinite for a difference where none is allowed, or between
    arrays that cannot be compared.
    """
    if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
        return math.inf
    if expected.data == actual.data:
        return 0.0
    return float(_ratios(_values(expected), _values(actual), _limit(bound, expected)).max(initial=0.0))


def magnitude(arrays: Iterable[Array | None]) -> float:
    """The largest finite magnitude among floating-point values; 0 if there is none."""
    largest = 0.0
    for array in arrays:
        if array is not None and array.dtype in _EPS:
            sizes = np.abs(_values(array).astype(np.float64))
            largest = max(largest, float(sizes[np.isfinite(sizes)].max(initial=0.0)))
    return largest


def near_overflow(arrays: Iterable[Array | None]) -> bool:
    """Whether a finite value is so large that sums or squares of such values may overflow in one order alone.

    No bound covers that.
    """
    return any(
        magnitude([array]) > _HIGH[array.dtype]
        for array in arrays
        if array is not None and array.dtype in _HIGH
    )


def enormous(expected: Array, actual: Array, *, scale: float) -> bool:
    """Whether a difference of values is far beyond rounding in a computation whose numbers reach `scale`.

    That is, at least half of the digits are lost. This is experience and not a bound: it may suggest what to look at
    next, but no verdict may depend on it. Values of exact types differ enormously or not at all.
    """
    a, b = _values(expected), _values(actual)
    if expected.dtype not in _EPS:
        return not bool(_same(a, b).all())
    difference = _difference(a, b)
    difference[_same(a, b)] = 0.0
    limit = 64 * math.sqrt(_EPS[expected.dtype]) * scale
    return bool((~(difference <= limit)).any())


def _presence(expected: Array | None, actual: Array | None) -> Mismatch | None:
    if expected is not None:
        return Mismatch(kind="missing", expected=repr(expected))
    if actual is not None:
        return Mismatch(kind="unexpected", actual=repr(actual))
    return None


def _values(array: Array) -> Values:
    """The elements in order, in a NumPy dtype that holds them exactly."""
    if array.dtype not in _DTYPES:
        raise HarnessError(f"values of dtype {array.dtype} cannot be compared; add it to bounds/numerics.py")
    raw = np.frombuffer(array.data, _DTYPES[array.dtype])
    if array.dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if array.dtype == "complex32":
        return raw.astype(np.float32).view(np.complex64)
    return raw


def tells_from_zero(expected: Array, bound: Array) -> bool:
    """Whether a bound excludes zeros in the place of a value, or anything at all in the place of zeros.

    Elements that are not finite are compared as such, whatever their bound.
    """
    sizes, limit = np.abs(_values(expected)), _limit(bound, expected)
    if not sizes.any():
        return bool(np.isfinite(limit).any()) or not sizes.size
    return bool(((sizes > limit) | ~np.isfinite(sizes)).any())


def _limit(bound: Array, expected: Array) -> Values:
    if bound.shape != expected.shape:
        raise HarnessError(
            f"a bound of shape {list(bound.shape)} for a value of shape {list(expected.shape)}"
        )
    return _values(bound).astype(np.float64)


def _same(a: Values, b: Values) -> npt.NDArray[np.bool_]:
    # Complex numbers by parts: NaN + 1j is not NaN + 2j.
    if np.iscomplexobj(a):
        return _same(a.real, b.real) & _same(a.imag, b.imag)
    same: npt.NDArray[np.bool_] = a == b
    return same | (np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else same


def _difference(a: Values, b: Values) -> Values:
    """|a − b| as float64; NaN where a NaN or equal infinities meet."""
    if a.dtype.kind == "b":
        return np.not_equal(a, b).astype(np.float64)
    if a.dtype.kind in "iu":
        # Wraps around to the exact distance, which int64 cannot hold.
        unsigned = a.dtype.str.replace("i", "u")
        steps: Values = np.maximum(a, b).view(unsigned) - np.minimum(a, b).view(unsigned)
        return steps.astype(np.float64)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        distance: Values = np.abs(a.astype(wide) - b.astype(wide))
    return distance


def _ratios(a: Values, b: Values, limit: Values) -> Values:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        quotient = _difference(a, b) / limit
    quotient[~np.isfinite(a) | ~np.isfinite(b) | np.isnan(quotient)] = np.inf
    quotient[_same(a, b)] = 0.0
    return quotient


def _text(value: Any, dtype: str) -> str:
    """The shortest text that distinguishes the value from its neighbours."""
    if dtype == "bfloat16" and np.isfinite(value):
        return repr(float(f"{value:.4g}"))
    return str(value)


def _relative(a: Any, b: Any) -> float | None:
    if not (np.isfinite(a) and np.isfinite(b)) or a == 0:
        return None
    a, b = (complex(a), complex(b)) if np.iscomplexobj(a) else (float(a), float(b))
    return _finite(abs(a - b) / abs(a))


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _ulps(a: Any, b: Any, dtype: str) -> int | None:
    """The distance in steps from one number to the next: that of the bit patterns as ordered integers."""
    if np.iscomplexobj(a):
        part = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}[dtype]
        real, imag = _ulps(a.real, b.real, part), _ulps(a.imag, b.imag, part)
        return None if real is None or imag is None else max(real, imag)
    if not (np.isfinite(a) and np.isfinite(b)):
        return None
    if dtype not in ("float64", "float32", "float16", "bfloat16"):
        return abs(int(a) - int(b))
    return abs(_ordered(a, dtype) - _ordered(b, dtype))


def _ordered(value: Any, dtype: str) -> int:
    """An integer that grows by 1 from each number to the next, with both zeros at 0."""
    if dtype == "bfloat16":
        bits, width = int(np.float32(value).view(np.uint32)) >> 16, 16
    else:
        width = {"float16": 16, "float32": 32, "float64": 64}[dtype]
        bits = int(np.dtype(dtype).type(value).view(f"uint{width}"))
    sign = 1 << (width - 1)
    return bits if bits < sign else sign - bits


def _lines(heading: str, rows: Mapping[str, str]) -> str:
    width = max(map(len, rows))
    return "\n".join([heading, *(f"  {label:<{width}}  {text}" for label, text in rows.items())])
