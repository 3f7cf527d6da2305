"""One stage on its own: full and split backward agree on every model, and nothing is left behind."""

from __future__ import annotations

import weakref

import pytest
import torch
from pipeconform.reference_impl.containers import leaves_of
from pipeconform.reference_impl.errors import OrderError
from pipeconform.reference_impl.stage import Stage, hand_over
from reference_models import MODELS, WIDTH, build_stage, draw


def _inputs(name: str, stage: int, *, requires_grad: bool):
    x = draw(3, WIDTH, seed=stage).requires_grad_(requires_grad)
    if name == "several" and stage:
        positions, mask = torch.arange(9).reshape(3, 3), torch.tensor([True, False, True])
        stream = draw(3, WIDTH, seed=9).requires_grad_(requires_grad)
        return [x, positions, mask, draw(3, seed=8), stream]
    if name == "deaf" and stage:
        return x, draw(3, WIDTH, seed=9).requires_grad_(requires_grad)
    return (x,)


def _run(name: str, stage: int, *, requires_grad: bool, split: bool, recompute: bool = False):
    made = Stage(build_stage(name, stage, 3), index=stage, recompute=recompute)
    kwargs = {"gain": draw(3, seed=5).abs(), "power": 2} if name == "gain" else {}
    inputs = _inputs(name, stage, requires_grad=requires_grad)
    output = made.forward(0, inputs, kwargs, differentiate=True, boundary=stage < 2)
    tensors = leaves_of(output)
    gradients = [draw(*t.shape, seed=20 + i) if t.requires_grad else None for i, t in enumerate(tensors)]
    if split:
        found = made.backward_input(0, gradients)
        assert all(p.grad is None for p in made.module.parameters())
        made.backward_weight(0)
    else:
        found = made.backward(0, gradients)
    assert made.unfinished == ()
    return found, {n: p.grad for n, p in made.module.named_parameters()}, getattr(made.module, "fires", 0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_split_backward_equals_full_backward(name: str, stage: int, requires_grad: bool) -> None:
    found, gradients, fires = _run(name, stage, requires_grad=requires_grad, split=True)
    expected, reference, expected_fires = _run(name, stage, requires_grad=requires_grad, split=False)

    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert gradients.keys() == reference.keys()
    for parameter, value in reference.items():
        assert (value is None) == (gradients[parameter] is None), parameter
        if value is not None:
            torch.testing.assert_close(gradients[parameter], value, rtol=1e-13, atol=0)
    assert fires == expected_fires


def test_inputs_get_gradients_only_where_they_want_one() -> None:
    made = Stage(build_stage("several", 1, 3), index=1)
    output = made.forward(0, _inputs("several", 1, requires_grad=True), {}, differentiate=True, boundary=True)
    found = made.backward(0, [torch.ones_like(t) if t.requires_grad else None for t in output])

    assert [gradient is None for gradient in found] == [False, True, True, True, False]


class Box:
    """What a graph holds in place of an activation; unlike a graph's nodes it can be watched."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("split", [False, True])
def test_activations_live_until_the_backward_or_the_weight_part(split: bool) -> None:
    made = Stage(build_stage("plain", 0, 1), index=0)
    boxes: list[weakref.ref[Box]] = []

    def pack(tensor: torch.Tensor) -> Box:
        box = Box(tensor.detach())  # with its graph, a saved output would hold itself
        boxes.append(weakref.ref(box))
        return box

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        inputs = _inputs("plain", 0, requires_grad=True)
        gradient = torch.ones_like(made.forward(0, inputs, {}, differentiate=True, boundary=True))
    assert all(box() for box in boxes)
    if split:
        made.backward_input(0, [gradient])
        assert all(box() for box in boxes)
        made.backward_weight(0)
    else:
        made.backward(0, [gradient])

    assert not any(box() for box in boxes)


def test_clearing_forgets_every_microbatch() -> None:
    made = Stage(build_stage("plain", 0, 1), index=0)
    with made.step(training=True):
        made.forward(0, _inputs("plain", 0, requires_grad=True), {}, differentiate=True, boundary=True)
        made.forward(1, _inputs("plain", 0, requires_grad=True), {}, differentiate=True, boundary=True)
        made.backward_input(1, [torch.ones(3, WIDTH, dtype=torch.float64)])
        assert made.unfinished == (0, 1)

    assert made.unfinished == ()


def test_modes_are_restored_module_by_module() -> None:
    module = build_stage("normed", 0, 1)
    module.norm.eval()
    with Stage(module, index=0).step(training=False):
        assert not module.training
    assert [m.training for m in module.modules()] == [True, True, False]


def test_evaluation_builds_no_graph() -> None:
    made = Stage(build_stage("plain", 0, 1), index=0)
    output = made.forward(0, _inputs("plain", 0, requires_grad=True), {}, differentiate=False, boundary=True)

    assert not output.requires_grad
    assert made.unfinished == ()


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (("backward",), "the backward of microbatch 0, of which the forward is due"),
        (("backward_input",), "the input part of microbatch 0, of which the forward is due"),
        (("backward_weight",), "the weight part of microbatch 0, of which the forward is due"),
        (("forward", "backward_weight"), "the weight part of microbatch 0, of which the backward is due"),
        (("forward", "forward"), "the forward of microbatch 0, of which the backward is due"),
        (("forward", "backward", "backward"), "the backward of microbatch 0, of which nothing is due"),
        (("forward", "backward", "backward_weight"), "the weight part of .*, of which nothing is due"),
        (("forward", "backward_input", "backward"), "the backward of .*, of which the weight part is due"),
        (("forward", "backward_input", "forward"), "the forward of .*, of which the weight part is due"),
        (
            ("forward", "backward_input", "backward_weight", "backward_weight"),
            "the weight part of microbatch 0, of which nothing is due",
        ),
    ],
)
def test_calls_out_of_order_are_refused(calls: tuple[str, ...], words: str) -> None:
    made = Stage(build_stage("plain", 0, 1), index=0)

    def call(name: str) -> None:
        if name == "forward":
            made.forward(0, _inputs("plain", 0, requires_grad=True), {}, differentiate=True, boundary=True)
        elif name == "backward_weight":
            made.backward_weight(0)
        else:
            getattr(made, name)(0, [torch.ones(3, WIDTH, dtype=torch.float64)])

    for name in calls[:-1]:
        call(name)
    with pytest.raises(OrderError, match=f"^stage 0 was asked for {words}$"):
        call(calls[-1])


class Counting:
    """A builder of deferred-weight functions that writes down what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self):
        k = self.calls.count("built")
        self.calls.append("built")
        return lambda: self.calls.append(f"ran {k}")


def test_deferred_weight_functions_run_at_w_or_at_the_end_of_a_full_backward() -> None:
    counting = Counting()
    made = Stage(build_stage("plain", 0, 1), index=0, dw_builder=counting)
    plain = build_stage("plain", 0, 1)
    for k in range(3):
        (x,) = _inputs("plain", 0, requires_grad=True)
        made.forward(k, (x,), {}, differentiate=True, boundary=True)
        plain(x).sum().backward()
    ones = [torch.ones(3, WIDTH, dtype=torch.float64)]

    made.backward_input(0, ones)
    made.backward_input(2, ones)
    assert counting.calls == ["built", "built"]
    made.backward(1, ones)
    assert counting.calls == ["built"] * 3 + ["ran 2"]
    made.backward_weight(2)
    made.backward_weight(0)

    assert counting.calls == ["built"] * 3 + ["ran 2", "ran 1", "ran 0"]
    for mine, right in zip(made.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, right.grad)


class Changing(torch.nn.Module):
    def __init__(self, *results):
        super().__init__()
        self.results = list(results)

    def forward(self, x):
        return self.results.pop(0)


@pytest.mark.parametrize(
    ("first", "second", "error", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3).half(), ValueError, "output 0 changed its dtype from float32"),
        (
            torch.zeros(2, 3),
            torch.zeros(2, 4),
            ValueError,
            "output 0 changed its shape from float32.*2, 3.* to",
        ),
        (torch.zeros(2, 3), torch.zeros(2, 3, 1), ValueError, "changed its shape"),
        (torch.zeros(2, 3), (torch.zeros(2, 3),), ValueError, "outputs are"),
        ((torch.zeros(2), None), None, TypeError, "output 1 is NoneType None; only tensors"),
    ],
)
def test_a_boundary_that_changes_is_refused(first, second, error, words) -> None:
    made = Stage(Changing(first, second), index=0)

    def run() -> None:
        for k in range(2):
            made.forward(k, torch.zeros(1), {}, differentiate=False, boundary=True)

    with pytest.raises(error, match=words):
        run()


def test_another_batch_size_is_no_change() -> None:
    made = Stage(Changing(torch.zeros(2, 3), torch.zeros(1, 3), torch.zeros(5, 3)), index=0)
    for sizes in ((2, 1), (5,)):
        with made.step(training=True):
            for k, size in enumerate(sizes):
                made.forward(k, torch.zeros(size, 3), {}, differentiate=False, boundary=True)


def test_another_step_may_not_change_the_boundary() -> None:
    made = Stage(Changing(torch.zeros(2, 3), torch.zeros(2, 7)), index=0)
    with made.step(training=True):
        made.forward(0, torch.zeros(2, 3), {}, differentiate=False, boundary=True)
    with made.step(training=True), pytest.raises(ValueError, match=r"float32\[2, 3\] to float32\[2, 7\]"):
        made.forward(0, torch.zeros(2, 3), {}, differentiate=False, boundary=True)


def test_an_output_with_another_number_of_samples_than_the_input_is_refused() -> None:
    made = Stage(Changing(torch.zeros(2, 3), torch.zeros(2, 3)), index=0)
    made.forward(0, torch.zeros(2, 3), {}, differentiate=False, boundary=True)
    with pytest.raises(ValueError, match=r"from float32\[4, 3\] to float32\[2, 3\]"):
        made.forward(1, torch.zeros(4, 3), {}, differentiate=False, boundary=True)


def test_a_gradient_that_does_not_fit_is_refused() -> None:
    made = Stage(build_stage("plain", 0, 1), index=0)
    made.forward(0, _inputs("plain", 0, requires_grad=True), {}, differentiate=True, boundary=True)
    with pytest.raises(ValueError, match=r"the gradient of output 0 is torch\.float32"):
        made.backward(0, [torch.ones(3, WIDTH)])


def test_handing_over_keeps_values_layout_and_flags() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    output = [x.t() * 2, {"n": torch.arange(3).expand(2, 3)}]
    handed = hand_over(output)

    assert handed[0].is_leaf
    assert handed[0].requires_grad
    assert handed[0].stride() == output[0].stride()
    assert handed[1]["n"].stride() == (0, 1)
    assert not handed[1]["n"].requires_grad


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("split", [False, True])
def test_a_stage_that_is_computed_again_has_the_same_gradients(name: str, split: bool) -> None:
    kept = _run(name, 0, requires_grad=False, split=split)
    again = _run(name, 0, requires_grad=False, split=split, recompute=True)

    torch.testing.assert_close(again[0], kept[0], rtol=0, atol=0)
    torch.testing.assert_close(again[1], kept[1], rtol=0, atol=0)


def test_what_is_computed_again_keeps_no_activations_and_takes_the_same_random_numbers() -> None:
    runs: list[torch.Tensor] = []

    class Drops(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            runs.append(torch.rand(3))
            return super().forward(x * runs[-1])

    made = Stage(Drops(3, 3), index=0, recompute=True)
    output = made.forward(0, (torch.ones(2, 3),), {}, differentiate=True, boundary=False)
    torch.rand(5)
    assert len(runs) == 1
    made.backward(0, [torch.ones_like(output)])
    first, second = runs
    assert torch.equal(first, second)
