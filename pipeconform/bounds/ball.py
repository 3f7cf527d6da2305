"""Arithmetic on enclosures: a value, and how far a legitimate evaluation may be from its exact value.

A `Ball` stands for one tensor of a computation that may be evaluated in several legitimate ways (another
order of additions, a fused multiply-add, a constant factor applied elsewhere). It holds

``mid``   the value one evaluation produced, in float64;
``rad``   E ≥ 0 with ``|x' − x| ≤ E`` for the exact value x and *every* legitimate evaluation x'; hence
          ``|x| ≤ |mid| + E`` and ``|x'| ≤ |mid| + 2E``, the two facts every formula below uses;
``mass``  at least the sum of the absolute values of the terms that were added up to make it;
``terms`` how many terms those are;
``dev``   samples of the error's linear form, see below;
``fixed`` whether ``mid`` may stand for the exact value, so that ``|x' − mid| ≤ E`` and not 2E.

Rounding is charged by the standard model ``fl(a∘b) = (a∘b)(1+δ), |δ| ≤ u``, plus the smallest normal
number where a result may underflow (kernels may flush subnormals):

* N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., SIAM 2002: §2.2 the model, §3.3
  running error analysis, §4.2 summation; J. H. Wilkinson, "Error analysis revisited", IMA Bull. 22 (1986)
  192-200.
* A sum of n terms in *any* order errs by at most ``(n−1)·u·Σ|xᵢ|``, an inner product by ``n·u·Σ|aᵢbᵢ|``,
  both without the restriction ``nu < 1`` of the classical γₙ (which bfloat16 breaks at n = 256): C.-P.
  Jeannerod, S. M. Rump, "Improved error bounds for inner products in floating-point arithmetic", SIAM J.
  Matrix Anal. Appl. 34 (2013) 338-344.

**Why samples.** Propagating radii alone (``|A|·E``) forgets signs: each layer multiplies the bound by ‖|W|‖
where errors really grow by ‖W‖; forward and backward, four blocks lose seven digits and two transformer
layers all of them. The error is, to first order, ``Σₖ Jₖεₖ`` over all roundings ``|εₖ| ≤ ρₖ``, so its sharp
bound is ``Σₖ |Jₖ|ρₖ`` with the signed Jacobians of the *whole* path. That sum is the scale of ``Σₖ JₖρₖCₖ``
with independent standard Cauchy Cₖ, whatever the Jₖ: V. Kreinovich, S. Ferson, "A new Cauchy-based black-box
technique for uncertainty in risk analysis", Reliab. Eng. Syst. Saf. 85 (2004) 267-279. So each ball carries
n such samples through the linear part of every operation; what is not linear (``E_x·E_y`` in a product,
``E²·|f''|``) is charged as one more εₖ. Then ``rad = min(propagated radius, 4·median|dev|)``. The median of n
samples is below a quarter of the scale with probability at most exp(−n·KL(½ ‖ p)), p = P(|C| < ¼) =
(2/π)·atan(¼) (Chernoff): 1.3·10⁻⁹ for n = 64, and it would matter only for an error near its worst case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# The analysis itself is computed in float64; its own roundings are far below this factor.
_SLACK = 1 + 2.0**-30
_SAFETY = 4.0


class Sampler:
    """Standard Cauchy noise, `count` samples per element, with its own generator."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._generators: dict[torch.device, torch.Generator] = {}

    def draw(self, like: Tensor) -> Tensor:
        """Independent samples for every element: shape (count, *like.shape)."""
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(like.device).manual_seed(0)
        noise = torch.empty((self.count, *like.shape), dtype=torch.float64, device=like.device)
        return noise.cauchy_(generator=self._generators[like.device])


class Unit(NamedTuple):
    """An arithmetic: unit round-off, underflow threshold, and the noise that samples its roundings."""

    u: float
    tiny: float
    sampler: Sampler

    @classmethod
    def of(cls, dtype: torch.dtype, sampler: Sampler) -> Unit:
        """The unit of `dtype`; integers and bool are exact."""
        if not dtype.is_floating_point:
            return cls(0.0, 0.0, sampler)
        info = torch.finfo(dtype)
        # float16 is computed in float32 and only stored: it keeps its subnormals.
        return cls(
            info.eps / 2, info.smallest_normal * (info.eps if dtype == torch.float16 else 1.0), sampler
        )

    def exact(self) -> Unit:
        """The arithmetic of truth values and indices."""
        return self._replace(u=0.0, tiny=0.0)

    def wider(self, other: Unit) -> Unit:
        """The coarser of two units."""
        return Unit(max(self.u, other.u), max(self.tiny, other.tiny), self.sampler)

    def rounding(self, magnitude: Tensor, times: float | Tensor = 1.0) -> Tensor:
        """The most that `times` roundings of numbers up to `magnitude` can add up to (0 where all are 0)."""
        most = torch.add(magnitude * self.u, magnitude.sign(), alpha=self.tiny)
        return most if isinstance(times, float | int) and times == 1 else most * times


class Ball:
    """See the module's docstring; every operation returns a new ball that includes its own rounding."""

    __slots__ = ("dev", "fixed", "mass", "mid", "rad", "terms", "unit")

    def __init__(
        self,
        mid: Tensor,
        rad: Tensor,
        unit: Unit,
        *,
        mass: Tensor | None = None,
        terms: int = 1,
        dev: Tensor | None = None,
        fresh: Tensor | None = None,
        fixed: bool = False,
    ) -> None:
        """`dev` is the linear part of the error and `fresh` the rest; without either, all of `rad` is fresh."""
        self.mid, self.unit, self.terms, self.fixed = mid, unit, terms, fixed
        # Infinities and NaN are compared as such, without a radius; an unknown radius is infinite.
        certain = None if _is_finite(mid) else ~mid.isfinite()
        rad = torch.nan_to_num(rad * _SLACK, nan=torch.inf, posinf=torch.inf).broadcast_to(mid.shape)
        rad = rad if certain is None else rad.masked_fill(certain, 0.0)
        fresh = rad if dev is None and fresh is None else fresh
        if unit.sampler.count and fresh is not None and bool(fresh.any()):
            noise = unit.sampler.draw(mid)
            dev = noise.mul_(fresh) if dev is None else torch.addcmul(dev, fresh, noise)
        if dev is not None:
            dev = dev.broadcast_to(len(dev), *mid.shape)
            dev = dev if certain is None else dev.masked_fill(certain, 0.0)
            sharp = _SAFETY * dev.abs().median(0).values
            if not _is_finite(sharp):
                sharp = torch.nan_to_num(sharp, nan=torch.inf, posinf=torch.inf)
                lost = sharp.isinf() & rad.isfinite()
                dev = torch.where(lost, rad * unit.sampler.draw(mid), dev) if bool(lost.any()) else dev
            rad = torch.minimum(rad, sharp)
        self.rad, self.dev = rad, dev
        self.mass = _top(mid, rad) if mass is None else mass

    @classmethod
    def exact(cls, mid: Tensor, unit: Unit) -> Ball:
        """A value that is the same in every evaluation."""
        ball = object.__new__(cls)
        ball.mid, ball.rad, ball.unit, ball.terms = mid, torch.zeros_like(mid), unit, 1
        ball.mass, ball.dev, ball.fixed = mid.abs(), None, True
        return ball

    @classmethod
    def recorded(
        cls,
        mid: Tensor,
        rad: Tensor,
        unit: Unit,
        *,
        mass: Tensor,
        terms: int,
        dev: Tensor | None,
        fixed: bool = False,
    ) -> Ball:
        """A value computed earlier, whose error is not copied: it holds until that value is written again."""
        ball = object.__new__(cls)
        ball.mid, ball.rad, ball.unit, ball.terms, ball.dev, ball.fixed = mid, rad, unit, terms, dev, fixed
        ball.mass = torch.maximum(mass, _top(mid, rad))
        return ball

    @classmethod
    def constant(cls, value: float, unit: Unit, like: Tensor) -> Ball:
        """A constant of the program, which may be rounded to the tensor's dtype."""
        exact = float(value).is_integer() and abs(value) * unit.u <= 1
        mid = torch.tensor(value, dtype=torch.float64, device=like.device)
        return cls(mid, mid.abs() * (0.0 if exact else unit.u), unit)

    # -- bookkeeping -----------------------------------------------------------------------------------

    def _same(self, **changes: object) -> Ball:
        ball = object.__new__(Ball)
        ball.mid, ball.rad, ball.mass, ball.dev = self.mid, self.rad, self.mass, self.dev
        ball.unit, ball.terms, ball.fixed = self.unit, self.terms, self.fixed
        for name, value in changes.items():
            setattr(ball, name, value)
        return ball

    def at(self, unit: Unit) -> Ball:
        """The same value, for further use in arithmetic of `unit`."""
        return self._same(unit=unit)

    def exactly(self) -> Ball:
        """The same value without its error, so that only an operation's own rounding is left."""
        return self._same(rad=torch.zeros_like(self.mid), dev=None)

    def map(self, move: Callable[[Tensor], Tensor]) -> Ball:
        """The ball after an operation that only moves elements."""
        dev = None if self.dev is None else torch.stack([move(sample) for sample in self.dev])
        return self._same(mid=move(self.mid), rad=move(self.rad), mass=move(self.mass), dev=dev)

    def plus(self, fresh: Tensor) -> Ball:
        """The same value with one more error of up to `fresh`, independent of all others."""
        return Ball(
            self.mid, self.rad + fresh, self.unit, mass=self.mass, terms=self.terms, dev=self.dev, fresh=fresh
        )

    def bent(self, value: Tensor, slope: Tensor, certain: Tensor) -> Ball:
        """A function with |f'| ≤ 1 and kinks: linear where no kink is near (`certain`)."""
        rad = torch.where(certain, self.rad * slope.abs(), self.rad)
        dev = _times(self.dev, slope * certain, value.ndim)
        return Ball(value, rad, self.unit, dev=dev, fresh=self.rad.masked_fill(certain, 0.0))

    def stretched(self, factor: float) -> Ball:
        """The value times a number, without rounding."""
        dev = None if self.dev is None else self.dev * factor
        size = abs(factor)
        return self._same(mid=self.mid * factor, rad=self.rad * size, mass=self.mass * size, dev=dev)

    def rounded(self, times: float = 1.0) -> Ball:
        """The value after `times` more roundings."""
        return self.plus(self.unit.rounding(self.top, times))

    @property
    def top(self) -> Tensor:
        """The largest magnitude that any evaluation can have."""
        return _top(self.mid, self.rad)

    # -- additions: any order --------------------------------------------------------------------------

    def __add__(self, other: Ball) -> Ball:
        # Telescopes to (n−1)·u·mass over a chain of additions, whatever its order: see the docstring. An
        # addition is exact at the underflow threshold, and so are sums of exact integers below 1/u.
        unit, terms = self.unit.wider(other.unit), self.terms + other.terms
        mid, mass = self.mid + other.mid, self.mass + other.mass
        rounding = unit.u * (other.terms * self.mass + self.terms * other.mass)
        doubt = self.rad + other.rad
        exact = doubt == 0
        if bool(exact.any()):
            integers = (mid == mid.round()) & (self.mid == self.mid.round()) & (mass * unit.u < 1) & exact
            rounding = rounding.masked_fill(integers, 0.0)
        dev = _joined(mid.ndim, self.dev, other.dev)
        return Ball(mid, doubt + rounding, unit, mass=mass, terms=terms, dev=dev, fresh=rounding)

    def __neg__(self) -> Ball:
        return self._same(mid=-self.mid, dev=None if self.dev is None else -self.dev)

    def __sub__(self, other: Ball) -> Ball:
        return self + -other

    def sum(self, dims: Sequence[int], *, keepdim: bool = False) -> Ball:
        """Σ over `dims` (all when empty): ΣE + (n−1)·u·Σmass."""
        dims = [dim % self.mid.ndim for dim in dims] or list(range(self.mid.ndim))
        if not dims:
            return self
        mid = self.mid.sum(dims, keepdim)
        count = self.mid.numel() / max(1, mid.numel())
        rounding = self.unit.u * max(0.0, count - 1) * self.mass.sum(dims, keepdim)
        dev = None if self.dev is None else self.dev.sum([dim + 1 for dim in dims], keepdim)
        return Ball(mid, self.rad.sum(dims, keepdim) + rounding, self.unit, dev=dev, fresh=rounding)

    def mean(self, dims: Sequence[int], *, keepdim: bool = False) -> Ball:
        """Sum over `dims`, divided by their number."""
        total = self.sum(dims, keepdim=keepdim)
        return total / Ball.constant(self.mid.numel() / max(1, total.mid.numel()), self.unit, self.mid)

    # -- products --------------------------------------------------------------------------------------

    def __mul__(self, other: Ball) -> Ball:
        # x'y' − xy = x̂·δy + ŷ·δx + at most 3·E_xE_y, since x is within E_x of x̂.
        if self.mid.ndim == 0 and other.mid.ndim > 0:
            return other * self
        unit = self.unit.wider(other.unit)
        mid, second = self.mid * other.mid, 3 * self.rad * other.rad
        rad = self.mid.abs() * other.rad + self.rad * other.mid.abs() + second
        left = _times(self.dev, other.mid, mid.ndim)
        dev = _joined(mid.ndim, left, _times(other.dev, self.mid, mid.ndim))
        if other.mid.ndim:
            rounding = unit.rounding(self.top * other.top)
            return Ball(mid, rad + rounding, unit, dev=dev, fresh=rounding + second)
        # A factor may be applied to each term of a sum, and as its rounded reciprocal: two roundings each.
        mass = self.mass * other.top
        rounding = unit.rounding(mass, 2)
        return Ball(mid, rad + rounding, unit, mass=mass, terms=self.terms, dev=dev, fresh=rounding + second)

    def __truediv__(self, other: Ball) -> Ball:
        # x'/y' − x/y = (δx − (x/y)·δy) / y' with |y'| ≥ |ŷ| − 2E_y. To first order y' = ŷ and x/y = x̂/ŷ;
        # beyond it |1/y' − 1/ŷ| ≤ (2E_y/|ŷ|)/|y'| and |x/y − x̂/ŷ| ≤ `rad` (before rounding).
        unit, mid = self.unit.wider(other.unit), self.mid / other.mid
        size = other.mid.abs()
        floor = (size - 2 * other.rad).clamp(min=0)
        quotient = (self.mid.abs() + self.rad) / (size - other.rad).clamp(min=0)
        rad = _where(self.rad, self.rad / floor) + _where(other.rad, quotient * other.rad / floor)
        linear = _where(self.rad, self.rad / size) + _where(other.rad, mid.abs() * other.rad / size)
        second = _where(other.rad, (2 * linear + rad) * other.rad / floor)
        left = _times(self.dev, 1 / other.mid, mid.ndim)
        dev = _joined(mid.ndim, left, _times(other.dev, -mid / other.mid, mid.ndim))
        if other.mid.ndim:
            rounding = unit.rounding(self.top / floor, 2)
            return Ball(mid, rad + rounding, unit, dev=dev, fresh=rounding + second)
        mass = self.mass / floor
        rounding = unit.rounding(mass, 2)
        return Ball(mid, rad + rounding, unit, mass=mass, terms=self.terms, dev=dev, fresh=rounding + second)

    def scale(self, factor: float) -> Ball:
        """The value times a constant of the program."""
        return self * Ball.constant(factor, self.unit, self.mid)

    def product(self, other: Ball, times: Callable[[Tensor, Tensor], Tensor], count: float) -> Ball:
        """Anything linear in each argument, made of sums of `count` products: `times` evaluates it.

        |A|E_B + E_A|B| + 3E_AE_B + n·u·|A||B| (Higham §3.5).
        """
        unit = self.unit.wider(other.unit)
        second, rounding = 3 * times(self.rad, other.rad), unit.rounding(times(self.top, other.top), count)
        rad = times(self.mid.abs(), other.rad) + times(self.rad, other.mid.abs()) + second + rounding
        left = None if self.dev is None else _of_samples(times, self.dev, other.mid)
        right = None if other.dev is None else _by_samples(times, self.mid, other.dev)
        mid = times(self.mid, other.mid)
        dev = _joined(mid.ndim, left, right)
        return Ball(mid, rad, unit, dev=dev, fresh=rounding + second)

    def matmul(self, other: Ball, *, count: float | None = None) -> Ball:
        """A·B with n = `count` or the inner size."""
        return self.product(other, torch.matmul, self.mid.shape[-1] if count is None else count)

    # -- functions of one value ------------------------------------------------------------------------

    def smooth(
        self,
        value: Tensor,
        slope: Tensor,
        bend: Tensor | float,
        *,
        times: float = 4,
        magnitude: Tensor | None = None,
        most: Tensor | None = None,
    ) -> Ball:
        """f(x) from f(mid), f'(mid) and ``bend`` ≥ |f''| over ``mid ± 2E``, by a kernel good to `times`·u.

        Vectorised library functions are good to 1-2 ulp (2-4 u); `magnitude` replaces |f| where a kernel's
        intermediate values are larger than its result, `most` bounds the spread by other means.
        """
        second = _where(self.rad, 2 * bend * self.rad**2)
        spread = _where(self.rad, slope.abs() * self.rad) + second
        if most is not None:
            spread = torch.fmin(spread, most)
        top = (value.abs() if magnitude is None else magnitude) + 2 * spread
        rounding = self.unit.rounding(top, times)
        dev = _times(self.dev, slope, value.ndim)
        return Ball(value, spread + rounding, self.unit, dev=dev, fresh=rounding + second)

    def exp(self) -> Ball:
        """e^x."""
        value = self.mid.exp()
        return self.smooth(value, value, (self.mid + 2 * self.rad).exp())

    def log(self) -> Ball:
        """The natural logarithm; unbounded where 0 cannot be excluded."""
        floor = (self.mid - 2 * self.rad).clamp(min=0)
        return self.smooth(self.mid.log(), 1 / self.mid, floor**-2)

    def sqrt(self) -> Ball:
        """√x; |√x' − √x| ≤ √|x' − x| holds down to 0, where the derivative does not exist."""
        floor, value = (self.mid - 2 * self.rad).clamp(min=0), self.mid.clamp(min=0).sqrt()
        return self.smooth(value, 0.5 / value, 0.25 * floor**-1.5, most=self.rad.sqrt())

    def rsqrt(self, *, at_least: float = 0.0) -> Ball:
        """1/√x for x known to be `at_least` that much; kernels may go through √ and a division."""
        floor = (self.mid - 2 * self.rad).clamp(min=at_least)
        value = self.mid.clamp(min=at_least).rsqrt()
        return self.smooth(value, -0.5 * value**3, 0.75 * floor**-2.5)

    def moments(self, dims: Sequence[int], *, one_pass: bool = False) -> tuple[Ball, Ball]:
        """Mean and (biased) variance over `dims`, kept as size-1 dims, by two passes or by updating.

        Updating formulas (Welford; pairwise merges) err by about n·u·κ relatively, κ² = 1 + mean²/var;
        E[x²] − mean² (`one_pass`) by n·u·κ²: T. F. Chan, J. G. Lewis, "Computing standard deviations:
        accuracy", Comm. ACM 22 (1979) 526-531. The constant 4 covers the roundings per update.
        """
        mean = self.mean(dims, keepdim=True)
        deviation = self - mean
        var = (deviation * deviation).mean(dims, keepdim=True)
        count = self.mid.numel() / max(1, mean.mid.numel())
        second = var.top + mean.top**2
        spread = second if one_pass else (var.top * second).sqrt()
        return mean, var.plus(self.unit.rounding(spread, 4 * count))


def either(first: Ball, second: Callable[[], Ball], *, count: float) -> Ball:
    """One function with two formulas in use; an evaluation may follow either.

    `second` evaluates the other formula on the same inputs, taken as exact. It reports only its own rounding (sums
    of `count` terms, with magnitudes up to 2E larger than it saw, hence the factor); errors of the inputs propagate
    as through the first formula, because the function is the same.
    """
    rounding = second().rad
    return first.plus(rounding + 16 * count * first.unit.u * first.rad)


def choose(condition: Ball, yes: Ball, no: Ball) -> Ball:
    """``where``, which covers both branches and the step between them where the condition is uncertain."""
    unit, take, doubt = yes.unit.wider(no.unit), condition.mid != 0, condition.rad > 0
    mid = torch.where(take, yes.mid, no.mid)
    step = torch.nan_to_num((yes.mid - no.mid).abs(), nan=torch.inf) + 3 * (yes.rad + no.rad)
    step = torch.where(doubt, step, 0.0)
    rad = torch.where(doubt, step, torch.where(take, yes.rad, no.rad))
    mass = torch.where(take, yes.mass, no.mass) + torch.where(doubt, yes.mass + no.mass, 0.0)
    left = _times(yes.dev, (take & ~doubt).double(), mid.ndim)
    right = _times(no.dev, (~take & ~doubt).double(), mid.ndim)
    dev = _joined(mid.ndim, left, right)
    return Ball(mid, rad, unit, mass=mass, terms=max(yes.terms, no.terms), dev=dev, fresh=step)


def _is_finite(value: Tensor) -> bool:
    """Whether all elements are finite; their sum is, then, unless it overflows."""
    return math.isfinite(value.sum().item()) or bool(value.isfinite().all())


def _top(mid: Tensor, rad: Tensor) -> Tensor:
    return torch.add(mid.abs(), rad, alpha=2)


def _where(present: Tensor, value: Tensor) -> Tensor:
    """`value`, but 0 where there is no error to propagate (0·∞ is then 0)."""
    return torch.where(present > 0, value, 0.0)


def lift(dev: Tensor, ndim: int) -> Tensor:
    """Samples of a tensor of fewer dims, ready to broadcast against one of `ndim`."""
    missing = ndim - (dev.ndim - 1)
    return dev.reshape(dev.shape[0], *([1] * missing), *dev.shape[1:]) if missing else dev


def _times(dev: Tensor | None, factor: Tensor, ndim: int) -> Tensor | None:
    if dev is None:
        return None
    lifted = lift(dev, ndim)
    return torch.where(lifted == 0, 0.0, lifted * factor)


def _of_samples(times: Callable[[Tensor, Tensor], Tensor], dev: Tensor, other: Tensor) -> Tensor:
    """`times` of every sample and `other`; matrix products of all samples in one call, where that means the same."""
    if times is torch.matmul and other.ndim <= max(2, dev.ndim - 1):
        return torch.matmul(dev, other)
    return torch.stack([times(sample, other) for sample in dev])


def _by_samples(times: Callable[[Tensor, Tensor], Tensor], one: Tensor, dev: Tensor) -> Tensor:
    """`times` of `one` and every sample; matrix products as in `_of_samples`."""
    ndim = dev.ndim - 1
    if times is torch.matmul and one.ndim <= ndim and ndim > 1:
        return torch.matmul(one, dev)
    if times is torch.matmul and ndim == 1 and one.ndim <= 2:
        return torch.matmul(dev, one.mT if one.ndim == 2 else one)
    return torch.stack([times(one, sample) for sample in dev])


def _joined(ndim: int, a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        one = a if b is None else b
        return None if one is None else lift(one, ndim)
    return lift(a, ndim) + lift(b, ndim)
