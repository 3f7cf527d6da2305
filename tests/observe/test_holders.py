"""The holder of a kept tensor is named as its author wrote it, and the harness and the search are no holders."""

from __future__ import annotations

import collections
import gc
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pipeconform.observe import holders


@dataclass
class _Record:
    buffer: object


class _Slots:
    __slots__ = ("kept",)

    kept: object


def _still() -> float:
    """A clock that stands, so that no search is given up on a busy machine."""
    return 0.0


def holder_of(thing: object) -> str:
    return holders.holder_of(thing, clock=_still)


def holder_of_graph(saved: Tensor) -> str:
    return holders.holder_of_graph(saved, clock=_still)


class _Stage:
    def __init__(self, kept: object) -> None:
        self.kept = kept


class Given:
    """Stands for an object of the harness."""

    __module__ = "pipeconform.execute.answers"

    def __init__(self, pipeline: object) -> None:
        self.pipeline = pipeline


class Made(nn.Module):
    """Stands for a stage that the harness made."""

    __module__ = "pipeconform.case.build.modules"


@pytest.fixture
def engine() -> types.ModuleType:
    """A module, which anybody can find; new for each test, for the garbage collector was told to forget what is old."""
    return types.ModuleType("an_engine")


def _tensor() -> Tensor:
    return torch.ones(2)


def _slots(x: Tensor) -> object:
    found = _Slots()
    found.kept = x
    return found


def _closure(x: Tensor) -> object:
    return lambda: x


@pytest.mark.parametrize(
    ("hold", "told"),
    [
        (lambda x: x, "an_engine.place"),
        (_Stage, "an_engine.place.kept"),
        (lambda x: _Stage([_tensor(), x]), "an_engine.place.kept[1]"),
        (lambda x: _Stage({0: (_Record(x),)}), "an_engine.place.kept[0][0].buffer"),
        (lambda x: _Stage({(1, "a"): x}), "an_engine.place.kept[(1, 'a')]"),
        (lambda x: _Stage({_Slots: x}), "an_engine.place.kept[type]"),
        (lambda x: _Stage(collections.deque([x])), "an_engine.place.kept[0]"),
        (lambda x: _Stage(collections.OrderedDict(last=x)), "an_engine.place.kept['last']"),
        (_slots, "an_engine.place.kept"),
        (lambda x: _Stage(_closure(x)), "an_engine.place.kept.__closure__[0].cell_contents"),
    ],
    ids=[
        "itself", "attribute", "list", "nested", "tuple as key", "type as key", "deque", "named", "slots", "closure"
    ],
)  # fmt: skip
def test_a_chain_is_told_as_an_expression(engine, hold, told) -> None:
    x = _tensor()
    engine.place = hold(x)

    assert holder_of(x) == told


def test_of_two_holders_the_shorter_chain_is_told(engine) -> None:
    x = _tensor()
    engine.place = _Stage([x])
    engine.nearer = x

    assert holder_of(x) == "an_engine.nearer"


def test_what_only_a_graph_holds_is_held_by_who_has_the_graph(engine) -> None:
    x = _tensor().requires_grad_() * 2
    engine.losses = [x.sin().sum()]

    assert holder_of(x) == "an_engine.losses[0].grad_fn…._saved_self"


@pytest.mark.parametrize(
    ("hold", "told"),
    [
        (lambda loss: loss, "an_engine.place.grad_fn"),
        (lambda loss: _Stage([loss]), "an_engine.place.kept[0].grad_fn"),
        (lambda loss: _Stage({0: loss.grad_fn}), "an_engine.place.kept[0]"),
    ],
    ids=["a loss", "one of several", "a node"],
)
def test_a_graph_is_held_by_who_has_a_tensor_or_a_node_of_it(engine, hold, told) -> None:
    boxes = []

    def pack(tensor: Tensor) -> list[Tensor]:
        boxes.append([tensor.detach()])
        return boxes[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box[0]):
        engine.place = hold(torch.ones(3).requires_grad_().sin().exp().sum())

    assert holder_of_graph(boxes[0][0]) == told


def test_a_graph_that_nothing_in_python_holds_has_no_holder(engine) -> None:
    engine.place = torch.ones(3).requires_grad_().sin()  # another graph

    assert holder_of_graph(torch.ones(3)) == ""


def test_a_suspended_function_is_named_with_its_variable(engine) -> None:
    def schedule(received: Tensor) -> Iterator[None]:
        yield

    x = _tensor()
    engine.running = schedule(x)
    next(engine.running)

    assert holder_of(x).endswith("schedule(), its variable received")


def test_a_module_that_is_older_than_the_process_is_found(monkeypatch) -> None:
    """A module's namespace, and a class's, are hidden from the garbage collector when a rank is forked."""
    old = types.ModuleType("an_old_engine")
    old.BUFFERS = {}
    old.Stage = type("Stage", (), {"__module__": "an_old_engine", "kept": []})
    monkeypatch.setitem(sys.modules, "an_old_engine", old)
    gc.freeze()
    first, second, third = _tensor(), _tensor(), _tensor()
    old.BUFFERS[3], old.last = first, third
    old.Stage.kept.append(second)

    assert [holder_of(one) for one in (first, second, third)] == [
        "an_old_engine.BUFFERS[3]",
        "Stage.kept[0]",
        "an_old_engine.last",
    ]


def test_what_the_harness_was_given_is_where_a_chain_ends(engine) -> None:
    """A pipeline is known by its class: the harness holds it, and no name leads to it."""
    x = _tensor()
    pipeline = _Stage([x])
    given = Given(pipeline)
    engine.further = [[[[pipeline]]]]

    assert holder_of(x) == "_Stage.kept[0]"
    assert given.pipeline is pipeline


def test_stages_that_the_harness_made_for_the_engine_are_the_engines(engine) -> None:
    x = _tensor()
    engine.modules = [Made()]
    engine.modules[0].outputs = [x]

    assert holder_of(x) == "an_engine.modules[0].outputs[0]"


def test_what_nothing_in_python_holds_has_no_holder() -> None:
    assert holder_of(_tensor()) == ""


def test_a_search_that_takes_too_long_ends_with_what_it_found(engine) -> None:
    times = iter((0.0, 1.0))
    x = _tensor()
    engine.place = _Stage(x)

    assert holders.holder_of(x, clock=lambda: next(times)) == "_Stage.kept"
