"""An a priori elementwise bound on the effect of rounding on every tensor of a computation.

Two correct engines may add the same contributions in another order, divide the loss by m where the other
divides the gradients, or use another matrix kernel. Their results then differ, and the difference is
*not* a fraction of the result: the gradient of a bias before a batch norm is zero in exact arithmetic and
pure rounding noise in any real one. The difference is bounded by the size of what was added up on the
way. `RunningError` keeps track of that, operation by operation: running error analysis (J. H.
Wilkinson; N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., SIAM 2002, §3.3), made
independent of the order of additions (see ``ball``).

For each tensor made while it is active it keeps E ≥ 0 such that every legitimate evaluation of the same
expression, in the same dtypes, is within E of the exact result. Two of them are within 2E of each other.

Covered: any order and blocking of sums and products, fused multiply-adds, constant factors applied to
sums or to their terms, a constant's reciprocal instead of a division, library functions good to 2 ulp.
Not covered, and therefore to be excluded or declared: TF32, kernels of the Strassen kind, overflow, values that
leave the tensors (``item()`` of an inexact value raises), memory written behind autograd's back (NumPy,
``data_ptr``).

Nothing is perturbed: the real kernels run on the real tensors, once; the analysis computes on copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pipeconform.bounds.ball import Ball, Sampler, Unit, lift
from pipeconform.bounds.kernels import DECOMPOSED, KERNELS
from pipeconform.bounds.moves import CONSTANTS, MOVEMENTS, functional, tensors_in
from pipeconform.bounds.norms import NORMS
from pipeconform.bounds.rules import DECISIONS, ELEMENTWISE, REDUCTIONS, Call, Rule
from pipeconform.bounds.single_rounding import NARROW, rounded_once
from pipeconform.errors import HarnessError

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {**ELEMENTWISE, **DECISIONS, **REDUCTIONS, **MOVEMENTS, **NORMS, **KERNELS}
)

# Operations that write in place although their schema does not say so.
_SILENT_WRITES: Final = MappingProxyType({"native_batch_norm": ("running_mean", "running_var")})

# Rules that use integers and masks as positions, not as values: if one is uncertain, nothing is known.
_POSITIONS: Final = (frozenset(MOVEMENTS) - {"_to_copy", "clone", "copy"}) | frozenset(KERNELS) - {
    "native_dropout"
}

# Operations that change or query something other than values.
_NO_VALUE: Final = frozenset(
    [
        "is_same_size",
        "set",
        "resize",
        "record_stream",
        "_record_function_enter_new",
        "_record_function_exit",
        "_assert_async",
    ]
)


class UnknownOperation(HarnessError):  # noqa: N818 - a statement about the table of rules
    """An operation has no rule for how it propagates errors; add one to ``bounds/rules.py``, with a test."""


class _Shadow(NamedTuple):
    """Radii and masses of the elements of one storage, which know when the storage is gone."""

    storage: StorageWeakRef
    itemsize: int
    rad: Tensor
    mass: Tensor
    dev: Tensor | None
    terms: int
    fixed: bool


class _Shadows:
    """The shadows of all storages: views, detached aliases and stolen gradients share the shadow of their storage."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._entries: dict[int, _Shadow] = {}
        self._sweep_at = 256

    @staticmethod
    def key(tensor: Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    def __len__(self) -> int:
        self._sweep()
        return len(self._entries)

    def has(self, tensor: Tensor) -> bool:
        """Whether something was recorded for this tensor's memory (a leaf has nothing)."""
        return self.key(tensor) in self._entries

    def in_doubt(self, tensor: Tensor) -> bool:
        """Whether any element may differ between evaluations."""
        return self.has(tensor) and bool(self.read(tensor).rad.any())

    def read(self, tensor: Tensor) -> Ball:
        """The ball of `tensor`; E = 0 if no recorded operation made it."""
        if tensor.is_complex():
            raise UnknownOperation("running error analysis has no rules for complex tensors")
        unit, mid = Unit.of(tensor.dtype, self.sampler), tensor.to(torch.float64)
        shadow = self._entries.get(self.key(tensor))
        if shadow is None:
            return Ball.exact(mid, unit)
        if shadow.itemsize != tensor.element_size():
            if shadow.rad.any():
                raise UnknownOperation(
                    f"an inexact tensor is viewed with another item size, as {tensor.dtype}"
                )
            return Ball.exact(mid, unit)
        rad, mass = (_like(flat, tensor) for flat in (shadow.rad, shadow.mass))
        dev = None if shadow.dev is None else _like(shadow.dev, tensor)
        return Ball.recorded(mid, rad, unit, mass=mass, terms=shadow.terms, dev=dev, fixed=shadow.fixed)

    def write(self, tensor: Tensor, ball: Ball) -> None:
        """Record `ball` for the elements of `tensor`, a view of its storage or all of it."""
        key, storage = self.key(tensor), tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        old = self._entries.get(key)
        whole = tensor.numel() == size
        terms = ball.terms if old is None or whole else max(ball.terms, old.terms)
        fixed = ball.fixed and (old is None or whole or old.fixed)
        if whole and tensor.is_contiguous():
            rad, mass = _copied(ball.rad, tensor), _copied(ball.mass, tensor)
            dev = None if ball.dev is None else _copied(lift(ball.dev, tensor.ndim), tensor, len(ball.dev))
        else:
            rad, mass, dev = self._written(tensor, ball, size, old, whole=whole)
        weak = StorageWeakRef(storage) if old is None else old.storage  # type: ignore[no-untyped-call]
        self._entries[key] = _Shadow(weak, tensor.element_size(), rad, mass, dev, terms, fixed)
        if len(self._entries) > self._sweep_at:
            self._sweep()

    def _written(
        self, tensor: Tensor, ball: Ball, size: int, old: _Shadow | None, *, whole: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The shadow of a storage of `size` elements, some of which `tensor` shows, or shows in another order."""

        def flat(before: Tensor | None, lead: tuple[int, ...] = ()) -> Tensor:
            if before is not None and before.shape[-1] == size:
                return before
            new = torch.zeros((*lead, size), dtype=torch.float64, device=tensor.device)
            if before is not None:  # the storage was resized
                kept = min(size, before.shape[-1])
                new[..., :kept] = before[..., :kept]
            return new

        rad, mass = flat(old and old.rad), flat(old and old.mass)
        _like(rad, tensor).copy_(ball.rad)
        _like(mass, tensor).copy_(ball.mass)
        dev = old.dev if old is not None and not whole else None
        if ball.dev is not None or dev is not None:
            dev = flat(dev, (self.sampler.count,))
            _like(dev, tensor).copy_(
                ball.rad.new_zeros(()) if ball.dev is None else lift(ball.dev, tensor.ndim)
            )
        return rad, mass, dev

    def _sweep(self) -> None:
        # The weak reference keeps the address of a dead storage from being reused until it is dropped here.
        dead = [key for key, entry in self._entries.items() if entry.storage.expired()]  # type: ignore[no-untyped-call]
        for key in dead:
            del self._entries[key]
        self._sweep_at = 256 + 2 * len(self._entries)


class RunningError(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, keeps an error bound for every computed tensor, forward and backward.

    ::

        with RunningError() as analysis:
            model(inputs).sum().backward()
        allowed = analysis.bound(model.weight.grad)

    Tensors that exist before (parameters, inputs, targets) are exact. The bound of a tensor is available
    as long as the tensor lives. An operation without a rule raises `UnknownOperation`. With `samples` = 0
    there is only the certain but blunt bound, which takes less memory; otherwise `samples` numbers per
    element are kept (see ``ball``).
    """

    def __init__(self, *, samples: int = 64) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shadows = _Shadows(Sampler(samples))
        self._exact = self._floor = Unit(0.0, 0.0, self._shadows.sampler)
        self._once = False

    @property
    def num_tracked(self) -> int:
        """The number of storages that are currently recorded."""
        return len(self._shadows)

    def aside(self) -> AbstractContextManager[object]:
        """A region whose operations are not analysed, for looking at tensors and not for computing with them."""
        return _disable_current_modes()

    @contextmanager
    def rounding_once(self) -> Iterator[None]:
        """A region in which a kernel with 16-bit results rounds each of them once, see `single_rounding`.

        Not for sums whose order is free: there, every addition is a kernel of its own.
        """
        self._once, before = True, self._once
        try:
            yield
        finally:
            self._once = before

    def error(self, tensor: Tensor) -> Tensor:
        """E: no legitimate evaluation of this tensor is further from its exact value (float64)."""
        with _disable_current_modes(), torch.no_grad():
            return self._shadows.read(tensor).rad.clone()

    def bound(self, tensor: Tensor) -> Tensor:
        """The most by which a legitimate evaluation may differ from this one, and one constant factor more (float64).

        That is 2E, or E where the value itself stands for the exact one. An engine may scale each of the added terms
        where the analysed run scaled none: two roundings (the factor's reciprocal and the product) of magnitudes that
        sum up to the tensor's mass. A complex number has the sum of its parts' bounds.
        """
        if tensor.is_complex():
            return self.bound(torch.view_as_real(tensor.detach())).sum(-1)
        with _disable_current_modes(), torch.no_grad():
            if not self._shadows.has(tensor):
                return torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device)
            ball = self._shadows.read(tensor)
            return (1 if ball.fixed else 2) * ball.rad + ball.unit.rounding(ball.mass, 2)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the real operation on the real tensors, then record its errors."""
        kwargs, operation = kwargs or {}, _operation(func)
        if operation.name == "complex":  # its parts are real, and views of their memory have their errors
            with self:
                return torch.view_as_complex(torch.stack(args, dim=-1))
        if not operation.known:  # below autograd, composite operations arrive in one piece
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        named = operation.bind(args, kwargs)
        written = operation.written
        before = named | {key: self._snapshot(named[key]) for key in written if key in named}
        result = func(*args, **kwargs)
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        # In-place operations return what they wrote (then it is listed once) or nothing.
        wrote = [t for key in written for t in tensors_in(named.get(key))]
        targets = [out if isinstance(out, Tensor) else None for out in outputs]
        targets = [t for t in targets if t is not None or not wrote]
        targets += [t for t in wrote if not any(t is out for out in targets)]
        with torch.no_grad():
            self._account(func, operation.name, before, targets, in_place=bool(wrote))
        return result

    def _snapshot(self, value: Any) -> Any:
        """Copies of the tensors that are about to be overwritten, with their shadows."""
        if isinstance(value, (list, tuple)):
            return [self._snapshot(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        copy = value.clone()
        if self._shadows.has(value):
            self._shadows.write(copy, self._shadows.read(value))
        return copy

    def _account(
        self, func: Any, name: str, named: Mapping[str, Any], targets: list[Tensor | None], *, in_place: bool
    ) -> None:
        if name in _NO_VALUE:
            return
        present = [t for t in targets if t is not None]
        inputs = list(tensors_in(tuple(named.values())))
        if not present:
            if any(self._shadows.in_doubt(t) for t in inputs):
                raise UnknownOperation(f"{func} takes an inexact value out of its tensor")
            return
        memory = {self._shadows.key(t) for t in inputs}
        if not in_place and all(self._shadows.key(t) in memory for t in present):
            return  # a view: its storage's shadow is its shadow
        single = name.removeprefix("_foreach_")
        if single in CONSTANTS:
            self._fill(func, single, inputs, present, in_place=in_place)
            return
        exact = not any(t.is_floating_point() or t.is_complex() for t in present)
        if exact and not any(self._shadows.in_doubt(t) for t in inputs):
            return
        if name.startswith("_foreach_"):
            names = {**_SINGULAR, **_SINGULAR_OF.get(single, {})}
            for index, target in enumerate(targets):
                item = {names.get(key, key): _item(value, index) for key, value in named.items()}
                self._apply(func, single, item, [target])
            return
        self._apply(func, name, named, targets)

    def _fill(
        self, func: Any, name: str, inputs: Sequence[Tensor], targets: Sequence[Tensor], *, in_place: bool
    ) -> None:
        """New data is exact, and so must be the parameters of a generator."""
        sampled = name in {"bernoulli", "normal"}
        if sampled and any(self._shadows.in_doubt(t) for t in inputs[in_place:]):
            raise UnknownOperation(f"{func} samples with an inexact parameter")
        for target in targets:
            if self._shadows.has(target):
                mid = target.to(torch.float64)
                self._shadows.write(target, Ball.exact(mid, self._exact))

    def _apply(
        self, func: Any, name: str, named: Mapping[str, Any], targets: Sequence[Tensor | None]
    ) -> None:
        unit = self._floor
        for target in targets:
            if target is not None:
                unit = unit.wider(Unit.of(target.dtype, self._shadows.sampler))
        call = Call(name, func, named, targets, unit, self._shadows.read)
        rule = self._rule(func, name)
        try:
            found = rule(call)
        except NotImplementedError as reason:
            raise UnknownOperation(f"no error rule for {func} with {reason}") from None
        balls = [found] if isinstance(found, Ball) else list(found)
        if (
            self._once
            and name == _operation(func).name
            and any(t is not None and t.dtype in NARROW for t in targets)
        ):
            balls = rounded_once(call, rule, record=self._shadows.write, plainly=balls)
        lost = name in _POSITIONS and any(
            not t.is_floating_point() and self._shadows.in_doubt(t) for t in tensors_in(tuple(named.values()))
        )
        for index, target in enumerate(targets):
            ball = balls[index] if index < len(balls) else None
            if target is None or (ball is None and not (target.is_floating_point() and target.numel())):
                continue
            if ball is None:
                raise UnknownOperation(f"the error rule of {func} says nothing about its output {index}")
            self._shadows.write(target, ball.plus(torch.full_like(ball.rad, torch.inf)) if lost else ball)

    def _rule(self, func: Any, name: str) -> Rule:
        if not _has_rule(func, name):
            raise UnknownOperation(f"no error rule for {func}; a bound without one would lie")
        return RULES.get(name, self._decomposed)

    def _decomposed(self, call: Call) -> list[Ball | None]:
        """Run the operation's decomposition under the analysis, in arithmetic no finer than its own."""
        overload = functional(call)
        decomposition: Callable[..., Any] = get_decompositions([overload])[overload]
        arguments = overload._schema.arguments
        given = [call.args[a.name] for a in arguments if not a.kwarg_only]
        named = {a.name: call.args[a.name] for a in arguments if a.kwarg_only}
        floor, self._floor = self._floor, call.unit
        try:
            with self:
                result = decomposition(*given, **named)
        finally:
            self._floor = floor
        results = list(result) if isinstance(result, (list, tuple)) else [result]
        return [self._shadows.read(out) for out in results]


_SINGULAR: Final = MappingProxyType(
    {"scalar": "other", "scalars": "other", "tensors1": "end", "weights": "weight"}
)
"""What the arguments of ``_foreach_`` operations are called where there is one tensor."""
_SINGULAR_OF: Final = MappingProxyType(
    {
        "addcdiv": {"scalars": "value"},
        "addcmul": {"scalars": "value"},
        "clamp_min": dict.fromkeys(("scalar", "scalars", "other"), "min"),
        "clamp_max": dict.fromkeys(("scalar", "scalars", "other"), "max"),
    }
)


class _Operation(NamedTuple):
    """What is the same about an operation however it is called."""

    name: str
    """Without namespace, overload and in-place underscore."""
    known: bool
    """Whether there is a rule for it, or for what it is made of."""
    arguments: tuple[str, ...]
    defaults: Mapping[str, Any]
    written: tuple[str, ...]
    """The arguments that it writes into."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name, including defaults."""
        named = dict(zip(self.arguments, args, strict=False))
        for name in self.arguments[len(args) :]:
            if name in kwargs:
                named[name] = kwargs[name]
            elif name in self.defaults:
                named[name] = self.defaults[name]
        return named


@functools.cache
def _operation(func: Any) -> _Operation:
    schema = func._schema
    name = str(schema.name).rpartition("::")[2]
    name = name if name.startswith("__") else name.removesuffix("_")
    writes = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return _Operation(
        name=name,
        known=_has_rule(func, name),
        arguments=tuple(a.name for a in schema.arguments),
        defaults={a.name: a.default_value for a in schema.arguments if a.has_default_value()},
        written=(*writes, *_SILENT_WRITES.get(name, ())),
    )


def _has_rule(func: Any, name: str) -> bool:
    return func.namespace == "aten" and (name in RULES or name in DECOMPOSED)


def _item(value: Any, index: int) -> Any:
    numbers = isinstance(value, Tensor) and value.dim()  # `scalars` in one tensor
    return value[index] if numbers or isinstance(value, (list, tuple)) else value


def _copied(value: Tensor, tensor: Tensor, *lead: int) -> Tensor:
    """The elements of a contiguous `tensor`'s shadow (or of samples of it), flat, in memory of their own."""
    shape = (*lead, *tensor.shape)
    value = value if value.shape == shape else value.expand(shape)
    return value.clone(memory_format=torch.contiguous_format).view(*lead, -1)


def _like(flat: Tensor, tensor: Tensor) -> Tensor:
    """The elements of a storage's flat shadow (or of samples of it) that `tensor` shows."""
    lead, strides = flat.shape[:-1], flat.stride()[:-1]
    return flat.as_strided((*lead, *tensor.size()), (*strides, *tensor.stride()), tensor.storage_offset())
