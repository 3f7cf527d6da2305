"""Splitting a whole model: the stages together equal it, and what cannot be split is refused by name."""

from __future__ import annotations

import pytest
import torch
from pipeconform.reference_impl.errors import SplitError
from pipeconform.reference_impl.tracing import (
    Point,
    TracedPipe,
    balanced,
    build_stage,
    split_model,
    stage_boundary,
)
from torch import nn


class Noise(nn.Module):
    """Decides by its mode, as dropout does."""

    def forward(self, x):
        return x * torch.rand_like(x) if self.training else x


class Block(nn.Module):
    """A linear map, batch norm and noise; decides by the number of rows, which a graph cannot."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm, self.noise = nn.Linear(width, width), nn.BatchNorm1d(width), Noise()

    def forward(self, x):
        rows = torch.cat([x, x * 0.5]) if x.shape[0] == 1 else x
        return self.noise(self.norm(self.linear(rows)))[: x.shape[0]]


class Pair(nn.Module):
    """Two blocks and a parameter of its own between them, used on both sides of a cut inside."""

    def __init__(self, width: int, *, marked: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.marked = marked

    def forward(self, x):
        x = self.blocks[0](x) * self.scale
        if self.marked:
            stage_boundary()
        return self.blocks[1](x) + self.scale


class Whole(nn.Module):
    """Three pairs with a keyword argument before the second and a skip connection from the first to the third."""

    def __init__(self, *, marked: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pairs = nn.ModuleList(Pair(4, marked=marked) for _ in range(3))
        self.spare = nn.Linear(4, 4)

    def forward(self, x, *, gain):
        first = self.pairs[0](x)
        second = self.pairs[1](first * (1.0 + gain))
        return {"y": self.pairs[2](second + first)}


X, GAIN = torch.randn(3, 4), torch.rand(3, 1)
EXAMPLE = {"args": (X,), "kwargs": {"gain": GAIN}}
WAYS = {
    "annotations": (4, {}, True),
    "before": (3, {"points": [Point("pairs.1"), Point("pairs.2")]}, False),
    "after": (3, {"points": [Point("pairs.0", after=True), Point("pairs.1", after=True)]}, False),
    "inside": (
        4,
        {"points": [Point("pairs.2"), Point("pairs.1.blocks.1"), Point("pairs.0", after=True)]},
        False,
    ),
    "policy": (5, {"policy": balanced(5)}, False),
}


def _split(way: str) -> tuple[Whole, TracedPipe]:
    num_stages, how, marked = WAYS[way]
    model = Whole(marked=marked)
    return model, split_model(model, num_stages=num_stages, **EXAMPLE, **how)


def _through(pipe: TracedPipe):
    torch.manual_seed(1)
    values = (X,)
    for module, names in zip(pipe.modules, pipe.info.kwargs, strict=True):
        values = module(*values, **{name: EXAMPLE["kwargs"][name] for name in names})
    return values["y"]


@pytest.mark.parametrize("way", WAYS)
def test_the_stages_together_equal_the_model_in_training_and_in_evaluation(way: str) -> None:
    model, pipe = _split(way)
    alone = Whole(marked=model.pairs[0].marked)
    torch.manual_seed(1)
    right = alone(X, gain=GAIN)["y"]
    right.sum().backward()
    mine = _through(pipe)
    mine.sum().backward()

    assert len(pipe.modules) == WAYS[way][0]
    assert torch.equal(mine, right)
    for (name, one), (_, other) in zip(model.named_parameters(), alone.named_parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)
    for (name, one), (_, other) in zip(model.named_buffers(), alone.named_buffers(), strict=True):
        assert torch.equal(one, other), name

    alone.eval()
    for module in pipe.modules:
        module.eval()
    assert torch.equal(_through(pipe), alone(X, gain=GAIN)["y"])


@pytest.mark.parametrize("way", WAYS)
def test_keys_are_the_models_and_parameters_its_own(way: str) -> None:
    model, pipe = _split(way)
    used = {key for key in model.state_dict() if not key.startswith("spare")}

    assert {key for module in pipe.modules for key in module.state_dict()} == used
    for module in pipe.modules:
        for name, parameter in module.named_parameters():
            assert parameter is model.get_parameter(name)


def test_splitting_leaves_no_trace_in_the_model_or_the_random_state() -> None:
    before, state = Whole().state_dict(), torch.get_rng_state()
    torch.set_rng_state(state)
    model, _ = _split("policy")
    after = torch.get_rng_state()
    Whole()  # what building the model itself draws

    assert torch.equal(after, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_what_crosses_is_known_and_a_skip_connection_passes_every_boundary() -> None:
    _, pipe = _split("after")
    shapes = [[tensor.shape for tensor in output.tensors] for output in pipe.info.outputs]

    assert pipe.info.num_stages == 3
    assert pipe.info.kwargs == ((), ("gain",), ())
    assert shapes == [[(3, 4)], [(3, 4), (3, 4)], [(3, 4)]]  # stage 1 hands on what stage 0 gave


def test_a_parameter_on_both_sides_of_a_cut_is_known_to_be_shared() -> None:
    _, pipe = _split("annotations")

    assert {0: "pairs.0.scale", 1: "pairs.0.scale"} in pipe.info.shared


@pytest.mark.parametrize(
    ("num_stages", "points", "words"),
    [
        (2, [Point("pairs.7")], "no submodule 'pairs.7'; nearest are 'pairs.[0-2]'"),
        (2, [Point("spare")], "before 'spare': the submodule is called in no forward"),
        (2, [Point("pairs.0")], "stage 0 would be empty: .* before 'pairs.0'"),
        (2, [Point("pairs.2", after=True)], "after 'pairs.2'"),
        (3, [Point("pairs.1")], "3 stages need 2 cuts, but there are 1: before 'pairs.1'"),
        (2, [], r"2 stages need 1 cuts, but there are 0: none"),
    ],
)
def test_a_wrong_split_point_is_refused_by_name(num_stages: int, points: list[Point], words: str) -> None:
    with pytest.raises(SplitError, match=words):
        split_model(Whole(), num_stages=num_stages, points=points, **EXAMPLE)


def test_a_point_that_is_reached_twice_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(self.inner(x))

    with pytest.raises(SplitError, match=r"before 'inner': the submodule is called 2 times"):
        split_model(Twice(), num_stages=2, points=[Point("inner")], args=(X,), kwargs={})


class Branching(nn.Module):
    """Decides by values, in its own code or in a submodule."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.first, self.second, self.inside = nn.Linear(4, 4), nn.Linear(4, 4), inside
        self.branch = Branch()

    def forward(self, x):
        x = self.first(x)
        x = self.branch(x) if self.inside else (x + 1 if x.sum() > 0 else x)
        return self.second(x)


class Branch(nn.Module):
    def forward(self, x):
        return x + 1 if bool(x.sum() > 0) else x


@pytest.mark.parametrize("how", [{"points": [Point("second")]}, {"policy": balanced(2)}, {}])
@pytest.mark.parametrize(("inside", "where"), [(False, "the model itself"), (True, "submodule 'branch'")])
def test_control_flow_by_values_is_refused_by_its_place(how: dict, inside: bool, where: str) -> None:
    with pytest.raises(SplitError, match=f"the forward of {where} .*depends on data"):
        split_model(Branching(inside=inside), num_stages=2, args=(X,), kwargs={}, **how)


def test_code_that_reads_the_mode_and_is_cut_is_refused() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            x = nn.functional.dropout(x, 0.5, self.training)
            return self.second(x)

    with pytest.raises(SplitError, match="does something else in training than in evaluation"):
        split_model(Moody(), num_stages=2, points=[Point("second")], args=(X,), kwargs={})


def test_hooks_of_code_that_is_cut_are_not_lost_silently() -> None:
    model = Whole()
    model.pairs[1].register_forward_hook(lambda *_: None)

    with pytest.raises(SplitError, match=r"falls inside 'pairs.1', which has forward hooks"):
        split_model(model, num_stages=2, points=[Point("pairs.1.blocks.1")], **EXAMPLE)
    assert split_model(model, num_stages=2, points=[Point("pairs.2")], **EXAMPLE).info.num_stages == 2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.randn(3, 5), r"input 0 of stage 0 is float32\[3, 5\], but float32\[3, 4\] was traced"),
        (torch.randn(3, 4, dtype=torch.float64), r"input 0 of stage 0 is float64\[3, 4\]"),
        (torch.randn(3, 4, 4), r"input 0 of stage 0 is float32\[3, 4, 4\]"),
    ],
)
def test_a_microbatch_unlike_the_traced_one_is_refused(value: torch.Tensor, words: str) -> None:
    _, pipe = _split("after")
    stage = build_stage(pipe.modules[0], pipe.info, index=0)

    with pytest.raises(ValueError, match=words):
        stage.forward(0, (value,), {}, differentiate=True, boundary=True)
    assert stage.unfinished == ()


def test_an_output_that_changed_is_refused_and_the_batch_may_have_another_size() -> None:
    _, pipe = _split("after")
    stage = build_stage(pipe.modules[0], pipe.info, index=0)
    stage.forward(0, (torch.randn(2, 4),), {}, differentiate=True, boundary=True)
    pipe.modules[0].get_submodule("pairs.0").register_forward_hook(lambda _m, _a, output: output.double())

    with pytest.raises(ValueError, match=r"output 0 of stage 0 is float64\[2, 4\], but float32\[3, 4\] was"):
        stage.forward(1, (torch.randn(2, 4),), {}, differentiate=False, boundary=False)
    with pytest.raises(SplitError, match="no stage 3"):
        build_stage(pipe.modules[0], pipe.info, index=3)


def test_too_few_modules_for_a_policy() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    with pytest.raises(SplitError, match="2 stages need as many modules with parameters; there are: 0"):
        split_model(model, num_stages=2, args=(X,), kwargs={}, policy=balanced(2))
