"""Finds a model's graph without computing anything.

A *skeleton*, the model's copy without values (device ``meta``), is traced, so buffers, random numbers and
counters of the model are left alone. The tracer looks into the modules that it should open; every other module
is one call in the graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx, nn

from .errors import SplitError

_LISTENER: ContextVar[Callable[[], None] | None] = ContextVar("stage_boundary", default=None)


@dataclass(frozen=True)
class Point:
    """A cut before or after every call of the submodule with this qualified name."""

    module: str
    after: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.module!r}"


def stage_boundary() -> None:
    """Call this in a model's forward where one stage ends and the next begins; otherwise it does nothing."""
    listener = _LISTENER.get()
    if listener is not None:
        listener()


def cut(label: str) -> None:
    """Stands in the graph where a stage ends; `label` says why. It is in no stage's graph."""


def skeleton_of(model: nn.Module) -> nn.Module:
    """A copy of the model without values; whatever runs on it leaves the model alone."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    return copy.deepcopy(model, memo)


def without_values(leaf: Any) -> Any:
    """A tensor of the same shape and dtype on the meta device; anything else as it is."""
    return leaf.detach().to("meta").requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def annotated_modules(skeleton: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[str]:
    """The modules in whose forward `stage_boundary` is called, and all modules around them."""
    within, found, handles = [""], set[str](), []
    for name, module in skeleton.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: within.append(name)))
            handles.append(module.register_forward_hook(lambda *_: _drop(within)))
    try:
        with _listening(lambda: found.update(within)):
            attempt(lambda: skeleton(*args, **kwargs), lambda: within[-1])
    finally:
        for handle in handles:
            handle.remove()
    return found


def _drop(within: list[str]) -> None:
    within.pop()


@contextmanager
def _listening(listener: Callable[[], None]) -> Iterator[None]:
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def attempt(run: Callable[[], Any], where: Callable[[], str]) -> Any:
    """Run without values and without effect on the random state; an error names where it failed."""
    try:
        with torch.random.fork_rng(devices=[]):
            return run()
    except Exception as error:
        name = where()
        raise UntraceableError(
            f"the forward of {_place(name)} cannot be followed without values ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]:.160}). If it decides by values (control flow that depends on "
            f"data), compute both ways and choose with torch.where, or put the decision into a stage of its own "
            f"and give the stages by hand",
            name,
        ) from error


class UntraceableError(SplitError):
    """Code that cannot be traced, with the name of the innermost module."""

    def __init__(self, text: str, module: str) -> None:
        super().__init__(text)
        self.module = module


class _Tracer(fx.Tracer):
    """Looks into the opened modules only, and records where stages end."""

    proxy_buffer_attributes = True

    def __init__(
        self, opened: set[str], marks: Mapping[int, Sequence[Point]], example: tuple[int, tuple[str, ...]]
    ) -> None:
        super().__init__(autowrap_functions=())
        self._opened, self._marks, self._example = opened, marks, example
        self.within = [""]

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """The inputs are those of the example, whatever the signature of the model's forward looks like."""
        num, named = self._example
        values = [self.create_proxy("placeholder", f"input_{i}", (), {}) for i in range(num)]
        values += [self.create_proxy("placeholder", name, (), {}) for name in named]

        def call(root: nn.Module, *inputs: Any) -> Any:
            return root_fn(root, *inputs[:num], **dict(zip(named, inputs[num:], strict=True)))

        return call, [self.root, *values]

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """One call in the graph, or what the module's own forward does; with the cuts before and after it."""
        path, points = self.path_of_module(m), self._marks.get(id(m), ())
        for point in points:
            if not point.after:
                self.end_stage(str(point))
        if path in self._opened:
            self.within.append(path)
            result = forward(*args, **kwargs)
            self.within.pop()
        else:
            result = self.create_proxy("call_module", path, args, kwargs)
        for point in points:
            if point.after:
                self.end_stage(str(point))
        return result

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Create it as usual, and remember which module's code it comes from."""
        node = super().create_node(*args, **kwargs)
        node.meta["within"] = self.within[-1]
        return node

    def end_stage(self, label: str) -> None:
        """Record that a stage ends here."""
        self.create_node("call_function", cut, (label,), {})


def graph_of(
    skeleton: nn.Module,
    opened: set[str],
    marks: Mapping[int, Sequence[Point]],
    example: tuple[tuple[Any, ...], Mapping[str, Any]],
    *,
    optional: bool,
) -> fx.Graph:
    """The model's graph, cuts included; `optional` says that a module which cannot be traced may stay closed."""

    def once() -> fx.Graph:
        tracer = _Tracer(opened, marks, (len(example[0]), tuple(example[1])))
        with _listening(lambda: tracer.end_stage("stage_boundary()")):
            traced: fx.Graph = attempt(lambda: tracer.trace(skeleton), lambda: tracer.within[-1])
        return traced

    while True:
        try:
            graph = once()
            skeleton.train(not skeleton.training)
            _require_same(graph, once())
        except UntraceableError as error:
            if not (optional and error.module):
                raise
            opened = {name for name in opened if name != error.module}
        else:
            return graph


def _require_same(one: fx.Graph, other: fx.Graph) -> None:
    """Refuse a model whose opened modules do not do the same in training and in evaluation."""
    if str(one) == str(other):
        return
    pairs = zip_longest(one.nodes, other.nodes)
    first = next(a or b for a, b in pairs if str(a and a.format_node()) != str(b and b.format_node()))
    name: str = first.meta["within"]
    raise UntraceableError(
        f"the forward of {_place(name)} does something else in training than in evaluation; put that part "
        f"into a submodule without a cut inside, which keeps both",
        name,
    )


def _place(name: str) -> str:
    return f"submodule {name!r}" if name else "the model itself"
