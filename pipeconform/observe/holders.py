"""Names what keeps an object alive: the references from something that an engine's author knows down to it.

The garbage collector knows which objects refer to another one. The search goes from the object upwards, a level of
referrers at a time, until it meets what everybody can find: a module, a class, a suspended function, or an object that
the harness was given, such as the pipeline. The shortest chain is told as an expression::

    Schedule1F1B._stage.args_recv_info[0][0].buffer

Objects of the harness and this search's own are no holders. Depth, breadth and time are bounded: a chain that is not
found is no error.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

__all__ = ["holder_of", "holder_of_graph"]

_LEVELS = 16  # references from the root to the object, containers and namespaces counted
_BREADTH = 256  # objects of one level that are followed
_SECONDS = 0.5
_NODES = 1000  # nodes of one autograd graph that are looked at
_ADAPTERS = "pipeconform.adapters."
_ROOTS = (types.ModuleType, type, types.FrameType, types.GeneratorType, types.CoroutineType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, types.CellType)
_KNOWN = (
    *("__self__", "__func__", "__closure__", "__defaults__", "__kwdefaults__", "__dict__", "__wrapped__"),
    *("func", "args", "keywords", "__traceback__", "__context__", "__cause__", "tb_frame", "tb_next"),
)
"""Attributes of Python's own objects that hold others and stand in no namespace."""


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """An object, and the node of what it refers to on the way to the kept object."""

    thing: Any
    below: _Node | None = None
    edge: str = ""
    """How it refers to what is below, where the garbage collector does not see it."""

    def down(self) -> Iterator[_Node]:
        """From this one to the kept object."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.below


def holder_of(thing: object, *, clock: Callable[[], float] = time.monotonic) -> str:
    """The shortest chain of references that keeps `thing` alive, as an expression; empty if none is found."""
    deadline = clock() + _SECONDS
    own = {id(frame) for frame in _stack(sys._getframe())}
    seen, level, best = {id(thing)}, [_Node(thing)], None
    for _ in range(_LEVELS):
        above = _above(level, seen, own)
        if not above and all(_is(node.thing, Tensor) for node in level):
            above = list(_through_autograd(level[0], own))
        ends = [_told(end) for node in above if (end := _end(node)) is not None]
        if any(ends):
            return min(filter(None, ends))
        level = [node for node in above if not _is_harness(node.thing)][:_BREADTH]
        seen |= {id(node.thing) for node in level}
        best = next((node for node in level if not _is(node.thing, _CONTAINERS)), best)
        if not level or clock() > deadline:
            break
    return _in_modules(thing) or ("" if best is None else _told(best))


def holder_of_graph(saved: Tensor, *, clock: Callable[[], float] = time.monotonic) -> str:
    """What keeps the graph alive that saved a tensor for a backward, as an expression; empty if nothing is found.

    Autograd gives what it saved as another tensor in the same memory.
    """
    deadline = clock() + _SECONDS
    # the newest first: results of the last forwards
    for thing in reversed(gc.get_objects()):
        if clock() > deadline:
            break
        node = _node_of(thing)
        if node is not None and _saved_by(node, saved) and (holder := holder_of(thing, clock=clock)):
            return f"{holder}.grad_fn" if _is(thing, Tensor) else holder
    return ""


def _node_of(thing: object) -> Any:
    """The node of an autograd graph that an object is or has; None for leaves and everything else."""
    if _is(thing, Tensor):
        return None if thing.is_leaf else thing.grad_fn  # type: ignore[attr-defined]  # a tensor, says the line before
    return thing if _is(thing, Node) else None


def _above(level: list[_Node], seen: set[int], own: set[int]) -> list[_Node]:
    """What refers to a level's objects; for the namespace of an object, that object.

    Whether an object's attributes are in a dictionary depends on who has looked at them before.
    """
    direct = _referrers(level, seen, own)
    spaces = [node for node in direct if type(node.thing) is dict]
    owners = [node for node in _referrers(spaces, seen, own) if _is_owner(node)]
    owned = {id(node.below) for node in owners}
    return [node for node in direct if id(node) not in owned] + owners


def _referrers(level: list[_Node], seen: set[int], own: set[int]) -> list[_Node]:
    below = {id(node.thing): node for node in level}
    things = tuple(node.thing for node in level)
    found = []
    for holder in gc.get_referrers(*things):
        if holder is things or id(holder) in own or id(holder) in seen or type(holder) is _Node:
            continue
        held = next((below[id(one)] for one in gc.get_referents(holder) if id(one) in below), None)
        if held is not None:
            found.append(_Node(holder, held))
    return found


def _is_owner(node: _Node) -> bool:
    return node.below is not None and _is_namespace(node.below.thing, of=node.thing)


def _end(node: _Node) -> _Node | None:
    """Where the chain through `node` ends, if it does: what anybody finds, or what the harness was given."""
    if _is(node.thing, _ROOTS):
        return None if _is_harness(node.thing) else node
    if not _is_harness(node.thing):
        return None
    return next((one for one in node.down() if not _is_anonymous(one)), None)


def _is_anonymous(node: _Node) -> bool:
    """Whether an object says nothing without what holds it."""
    return _is(node.thing, _CONTAINERS) or _is_harness(node.thing) or node.below is None


def _is_harness(thing: Any) -> bool:
    """Whether an object is the harness's; the stages that it makes for an engine are the engine's."""
    if _is(thing, nn.Module):
        return False
    if _is(thing, types.ModuleType):
        name = thing.__name__
    elif _is(thing, types.FrameType):
        name = thing.f_globals.get("__name__")
    elif _is(thing, type | types.FunctionType):
        name = thing.__module__
    else:
        name = type(thing).__module__
    return str(name).startswith("pipeconform.") and not str(name).startswith(
        (_ADAPTERS, "pipeconform.reference_impl")
    )


def _is(thing: object, kind: Any) -> bool:
    """Whether an object is of a kind by its type: `isinstance` would also ask the object."""
    return issubclass(type(thing), kind)


def _stack(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _through_autograd(node: _Node, own: set[int]) -> Iterator[_Node]:
    """Tensors that refer to a tensor from C++: by their gradient, as a view, or by their graph."""
    for tensor in gc.get_objects():
        if not issubclass(type(tensor), Tensor) or tensor is node.thing or id(tensor) in own:
            continue
        if (tensor.grad if tensor.is_leaf else None) is node.thing:
            yield _Node(tensor, node, ".grad")
        elif tensor._base is node.thing:
            yield _Node(tensor, node, "._base")
        elif name := _saved_by(tensor.grad_fn, node.thing):
            yield _Node(tensor, node, f".grad_fn…{name}")


def _saved_by(root: Any, tensor: object) -> str:
    """The name under which a graph saved `tensor`; empty if it did not."""
    todo, seen = [root], {None}
    while todo and len(seen) < _NODES:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            if name == "variable" or name.startswith("_saved_"):
                try:
                    if _is_saved_as(getattr(node, name), tensor):
                        return f".{name}"
                except RuntimeError:  # a backward has released it
                    break
        todo += [one for one, _ in node.next_functions]
    return ""


def _is_saved_as(found: object, tensor: Any) -> bool:
    """Whether what a graph returns as saved is this tensor, or lies where it lies."""
    if found is tensor:
        return True
    return (
        _is(found, Tensor)
        and _is(tensor, Tensor)
        and found.numel() > 0  # type: ignore[attr-defined]  # a tensor, says the line before
        and found.data_ptr() == tensor.data_ptr()  # type: ignore[attr-defined]
        and found.shape == tensor.shape  # type: ignore[attr-defined]
    )


def _in_modules(thing: object) -> str:
    """The name of a module's or class's variable that holds an object.

    What was there before the ranks were forked is hidden from the garbage collector, and so are the namespaces of
    modules that were imported then.
    """
    for module in list(sys.modules.values()):
        if not _is(module, types.ModuleType) or _is_harness(module):
            continue
        for value in list(vars(module).values()):
            if value is thing:
                return _told(_Node(module, _Node(vars(module), _Node(thing))))
            own = _is(value, type) and value.__module__ == module.__name__
            for inner in list(vars(value).values()) if own else [value]:
                if inner is thing:
                    return _told(_Node(value, _Node(thing), f".{_key_of(vars(value), thing)}"))
                if _is(inner, dict | list | deque) and any(one is thing for one in _items(inner)):
                    kept = _Node(inner, _Node(thing))
                    if own:
                        return _told(_Node(value, kept, f".{_key_of(vars(value), inner)}"))
                    return _told(_Node(module, _Node(vars(module), kept)))
    return ""


def _items(container: Any) -> list[object]:
    return list(container.values()) if _is(container, dict) else list(container)


def _key_of(namespace: Any, value: object) -> object:
    return next((key for key, one in list(namespace.items()) if one is value), "?")


def _told(root: _Node) -> str:
    """A chain as an expression, without the adapters of pipeconform at its beginning."""
    chain = list(root.down())
    named = [i for i, node in enumerate(chain[:-1]) if not _is(node.thing, _CONTAINERS)]
    begin = next((i for i in named if not _is_adapters(chain[i].thing)), named[0] if named else 0)
    chain = chain[begin:]
    text, attribute = _title(chain[0].thing), False
    for node in chain[:-1]:
        below = node.below
        assert below is not None
        if node.edge:
            text, attribute = text + node.edge, False
        elif _is_namespace(below.thing, of=node.thing):
            attribute = True
        else:
            text, attribute = text + _step(node.thing, below.thing, attribute=attribute), False
    return text


def _is_adapters(thing: object) -> bool:
    return type(thing).__module__.startswith(_ADAPTERS)


def _title(thing: Any) -> str:
    if _is(thing, types.ModuleType):
        return str(thing.__name__)
    if _is(thing, types.GeneratorType | types.CoroutineType):
        return f"a suspended {thing.__qualname__}()"
    if _is(thing, types.FrameType):
        return f"a frame of {thing.f_code.co_qualname}()"
    if _is(thing, type | types.FunctionType):
        return str(thing.__qualname__)
    return type(thing).__qualname__


def _is_namespace(thing: object, *, of: object) -> bool:
    if type(thing) is not dict:
        return False
    return _is(of, type) or _or_none(lambda: vars(of)) is thing


def _or_none(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except Exception:  # an attribute of an engine's object may raise anything
        return None


def _step(holder: Any, held: object, *, attribute: bool) -> str:
    """How one object refers to another."""
    if _is(holder, dict):
        for key, value in list(holder.items()):
            if value is held:
                return f".{key}" if attribute else f"[{_short(key)}]"
    if _is(holder, list | tuple | deque):
        for index, value in enumerate(holder):
            if value is held:
                return f"[{index}]"
    if _is(holder, types.CellType):
        return ".cell_contents"
    if _is(holder, types.GeneratorType):
        return _local(holder.gi_frame, held)
    if _is(holder, types.CoroutineType):
        return _local(holder.cr_frame, held)
    if _is(holder, types.FrameType):
        return _local(holder, held)
    for name in (*_names(holder), *_KNOWN):
        if _or_none(lambda name=name: getattr(holder, name)) is held:  # type: ignore[misc]  # a default binds the name
            return f".{name}"
    return ".…"


def _local(frame: types.FrameType | None, held: object) -> str:
    names: Iterable[tuple[str, object]] = frame.f_locals.items() if frame is not None else ()
    return next((f", its variable {name}" for name, value in names if value is held), ", a value of its")


def _names(holder: object) -> list[str]:
    """The attributes of an object that are in its namespace or in slots."""
    inside: Any = _or_none(lambda: list(vars(holder)))
    slots = [
        name
        for kind in type(holder).__mro__
        for name, value in vars(kind).items()
        if _is(value, types.MemberDescriptorType)
    ]
    return [*(inside or ()), *slots]


def _short(key: object) -> str:
    """A key in a few characters that are the same in every run: no address, and no code of the engine's."""
    if _is(key, str | int | tuple) and (type(key) is not tuple or all(type(k) in (int, str) for k in key)):
        text = repr(key)
        return text if len(text) <= 40 else f"{text[:39]}…"
    return type(key).__qualname__
