"""The layers compute what the blocks promise, forwards and backwards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeconform.case import blocks
from pipeconform.case.build.graph_layers import deferred_weights, graph_layer
from pipeconform.case.build.layers import DropoutLayer, module_of
from pipeconform.case.case import Model, Stage

WIDTH = 4


def _layer(block: blocks.Block, **model) -> nn.Module:
    """The module of a block, with parameters that are the same in every test."""
    fields = {"width": WIDTH, "stages": (Stage(blocks=(blocks.Linear(),)),), **model}
    generator = torch.Generator().manual_seed(3)
    module = module_of(block, Model(**fields)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return module


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(
        *(shape or (3, WIDTH)), generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )


def _close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other)


FORMULAS = {
    blocks.Mlp(): lambda m, x: x + m.down(functional.gelu(m.up(x))),
    blocks.Shared(): lambda m, x: m.linear(torch.tanh(m.linear(x))),
    blocks.Unused(): lambda m, x: x,
    blocks.Inplace(): lambda m, x: functional.leaky_relu(m.linear(x) * 1.25 + 0.5, 0.5),
    blocks.Activation(): lambda m, x: torch.tanh(m.linear(x)),
    blocks.Activation(kind="relu"): lambda m, x: m.linear(x).clamp(min=0),
    blocks.Activation(kind="sigmoid"): lambda m, x: 1 / (1 + torch.exp(-m.linear(x))),
    blocks.Activation(kind="softmax"): lambda m, x: torch.softmax(3 * m.linear(x), -1),
    blocks.Layout(): lambda m, x: x,
    blocks.Layout(kind="expanded"): lambda m, x: x.mean(-1, keepdim=True) + 0 * x,
    blocks.Hooked(): lambda m, x: 1.5 * (0.75 * x @ m.linear.weight.t() + m.linear.bias),
    blocks.Auxiliary(): lambda m, x: x @ m.linear.weight.t() + m.linear.bias,
    blocks.Stateful(): lambda m, x: (y := m.linear(x)) * (0.5 + y.tanh().abs()),
    blocks.Tied(): lambda m, x: torch.tanh(m.first(x)) @ m.first.weight.t() + m.second.bias,
    blocks.Tied(what="bias"): lambda m, x: torch.tanh(m.first(x)) @ m.second.weight.t() + m.first.bias,
    blocks.Linear(): lambda m, x: x @ m.weight.t() + m.bias,
    blocks.Linear(bias=False): lambda m, x: x @ m.weight.t(),
    blocks.InputHooked(): lambda m, x: m.linear(x),
    blocks.InputHooked(together=True): lambda m, x: m.linear(x),
    blocks.GradientHooked(): lambda m, x: m.linear(x),
    blocks.GradientHooked(on="module"): lambda m, x: m.linear(x),
    blocks.Accumulating(): lambda m, x: m.linear(x),
    blocks.Deferred(): lambda m, x: x @ m.weight.t(),
    blocks.Common(): lambda m, x: torch.tanh((x + m.first + m.third) * (x + m.second + m.third)),
    blocks.Joined(): lambda m, x: torch.tanh(
        m.linear(torch.cat([x, m.learned.expand(len(x), -1), torch.ones_like(x)], -1))
    ),
    blocks.Combined(): lambda m, x: x @ (m.linear.weight + m.further).t() + m.linear.bias,
    blocks.Combined(how="rows"): lambda m, x: m.linear(x) + m.further[0] + m.further[1] + m.further[2],
    blocks.Offsets(): lambda m, x: x + torch.tanh(m.linear(x)).mean(0) + m.first + m.second,
    **{
        blocks.Pieces(how=how): lambda m, x: m.wide(x)[:, :WIDTH] * torch.tanh(m.wide(x)[:, WIDTH:])
        for how in ("chunk", "split", "unbind")
    },
    blocks.Checkpointed(): lambda m, x: m.inner[0](x),
    blocks.Checkpointed(reentrant=True): lambda m, x: m.inner[0](x),
}


@pytest.mark.parametrize(("block", "formula"), FORMULAS.items(), ids=map(repr, FORMULAS))
def test_a_layer_computes_what_its_block_promises(block, formula) -> None:
    module, x = _layer(block), _x().requires_grad_()

    _close(module(x), formula(module, x))


# ------------------------------------------------------------------------------------------ single layers


def test_attention_mixes_over_the_sequence_wherever_it_is() -> None:
    one, other = (_layer(blocks.Attention(), sequence=3, batch_dim=dim) for dim in (0, 1))
    x = _x(2, 3, WIDTH)
    scores = one.query(x) @ one.key(x).transpose(1, 2) / WIDTH**0.5

    _close(one(x), x + scores.softmax(-1) @ one.value(x))
    _close(other(x.transpose(0, 1)), one(x).transpose(0, 1))


@pytest.mark.parametrize("shape", [(2, WIDTH), (2, 3, WIDTH)])
def test_a_batch_norm_uses_every_dimension_but_the_last(shape) -> None:
    module, x = _layer(blocks.BatchNorm()), _x(*shape)
    rows = x.reshape(-1, WIDTH)
    normed = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()

    _close(module(x).reshape(-1, WIDTH), normed * module.norm.weight + module.norm.bias)


def test_a_batch_norm_of_one_row_compares_it_with_a_row_of_its_own_making() -> None:
    module, x = _layer(blocks.BatchNorm()), _x(1, WIDTH)
    rows = torch.cat([x, 0.5 * x + 1])
    normed = (x - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()

    _close(module(x), normed * module.norm.weight + module.norm.bias)
    assert module(x).shape == (1, WIDTH)


def test_a_count_is_another_tensor_after_every_forward_in_training() -> None:
    module, x = _layer(blocks.Counting()), _x(1, WIDTH)
    begun = module.count

    module(x)
    module.eval()(x)

    assert (begun.item(), module.count.item()) == (0, 1)


def test_elements_of_an_expanded_buffer_are_one_place_in_memory() -> None:
    module, plain = _layer(blocks.Counting(expanded=True)), _layer(blocks.Counting())
    plain.load_state_dict(module.state_dict(), strict=False)

    assert module.mask.stride() == (0, 0)
    _close(module(_x(2, WIDTH)), plain(_x(2, WIDTH)))


def test_dropout_drops_about_half_in_training_and_nothing_in_evaluation() -> None:
    layer, x = DropoutLayer(), torch.ones(40, 50)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropped = layer.train()(x)

    assert dropped.unique().tolist() == [0, 2]
    assert 0.9 < dropped.mean() < 1.1
    assert torch.equal(layer.drawn * 2.0, dropped)
    layer.replay = torch.zeros(40, 50, dtype=torch.bool)
    assert not layer(x).any()
    assert torch.equal(layer.drawn, layer.replay)
    assert layer.eval()(x) is x


@pytest.mark.parametrize(("first", "both"), [(1.0, True), (-1.0, False), (0.0, False)])
def test_a_branch_is_taken_if_the_first_value_is_positive(first: float, both: bool) -> None:
    module, x = _layer(blocks.Branch()), _x()
    x[0, 0] = first

    _close(module(x), module.always(x) + (module.sometimes(x) if both else 0))


@pytest.mark.parametrize(("first", "through"), [(1.0, True), (-1.0, False), (0.0, False)])
def test_a_stage_is_passed_by_unless_the_first_value_is_positive(first: float, through: bool) -> None:
    module, x = _layer(blocks.Bypass()), _x()
    x[0, 0] = first

    _close(module(x), module.linear(x) if through else 0.75 * x)
    assert module(x).requires_grad == through


def test_layouts_differ_in_their_strides() -> None:
    x = _x(2, 3, WIDTH)

    assert _layer(blocks.Layout())(x).stride() != x.stride()
    assert _layer(blocks.Layout(kind="expanded"))(x).stride()[-1] == 0


def test_a_stateful_layer_forgets_what_is_long_done() -> None:
    module = _layer(blocks.Stateful())
    for _ in range(70):
        module(_x(1, WIDTH))

    assert sorted(module.kept) == list(range(6, 70))


def test_a_compiled_layer_is_wrapped_or_compiled_in_place() -> None:
    wrapped, in_place = (
        module_of(blocks.Compiled(how=how), Model(width=WIDTH, stages=())) for how in ("wrapped", "in_place")
    )

    assert hasattr(wrapped, "_orig_mod")
    assert not hasattr(in_place, "_orig_mod")
    assert in_place._compiled_call_impl is not None


def test_an_inner_dropout_is_there_only_if_asked_for() -> None:
    def drops(**fields) -> bool:
        return any(isinstance(part, DropoutLayer) for part in _layer(blocks.Checkpointed(**fields)).modules())

    assert drops(dropout=True)
    assert not drops()


def test_embeddings_and_heads_have_the_sizes_of_the_model() -> None:
    assert _layer(blocks.Embedding()).weight.shape == (11, WIDTH)
    assert _layer(blocks.Head(), classes=5).weight.shape == (5, WIDTH)


def test_a_block_without_a_layer_is_refused() -> None:
    with pytest.raises(TypeError, match="no module for block"):
        graph_layer(blocks.Linear(), WIDTH)


# ------------------------------------------------------------------------------------------ gradients


def _gradients(block: blocks.Block, *, needed: bool = True) -> SimpleNamespace:
    """A layer after one backward of the sum of its output; `needed`: of its input, too."""
    module, x = _layer(block), _x().requires_grad_(needed)
    module(x).sum().backward()
    return SimpleNamespace(module=module, x=x.detach(), of_input=x.grad)


ONES = torch.ones(3, WIDTH, dtype=torch.float64)


def test_hooks_on_parameters_change_their_gradients_only() -> None:
    found = _gradients(blocks.GradientHooked())
    linear = found.module.linear

    assert found.module.fires == {"parameter": 2}
    _close(linear.weight.grad, 1.25 * ONES.t() @ found.x)
    _close(linear.bias.grad, 1.25 * ONES.sum(0))
    _close(found.of_input, ONES @ linear.weight)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("needed", [True, False])
def test_hooks_on_a_modules_backward_change_what_comes_in_and_what_goes_out_if_anything_does(
    needed: bool,
) -> None:
    found = _gradients(blocks.GradientHooked(on="module"), needed=needed)
    linear = found.module.linear

    assert found.module.fires == {"pre_backward": 1, "backward": 1}
    _close(linear.weight.grad, 1.5 * ONES.t() @ found.x)
    if needed:
        _close(found.of_input, 1.5 * 1.25 * ONES @ linear.weight)
    else:
        assert found.of_input is None


def test_hooks_on_a_forward_change_its_gradient_if_there_is_one() -> None:
    found = _gradients(blocks.Hooked())

    assert found.module.fires == {"pre_forward": 1, "forward": 1, "gradient": 1}
    _close(found.of_input, 0.75 * 1.25 * 1.5 * ONES @ found.module.linear.weight)
    with torch.no_grad():
        found.module(_x())
    assert found.module.fires == {"pre_forward": 2, "forward": 2, "gradient": 1}


def test_hooks_on_inputs_watch_tensors_that_need_a_gradient() -> None:
    module, x, free = _layer(blocks.InputHooked()), _x().requires_grad_(), _x()
    module.watch((x, free, "no tensor", None))
    (x * free).sum().backward()

    assert module.fires == {"input": 1}
    _close(x.grad, 1.25 * free)


def test_a_hook_on_all_inputs_together_runs_once_and_changes_nothing() -> None:
    module, x, y = _layer(blocks.InputHooked(together=True)), _x().requires_grad_(), _x().requires_grad_()
    module.watch((x, "no tensor", y, _x()))
    (x * y).sum().backward()

    assert module.fires == {"joint_input": 1}
    _close(x.grad, y)


def test_hooks_after_accumulation_count_parameters() -> None:
    assert _gradients(blocks.Accumulating()).module.fires == {"post_accumulate_grad": 2}


def test_an_auxiliary_loss_adds_its_own_gradient_whatever_comes_back() -> None:
    found = _gradients(blocks.Auxiliary())
    linear = found.module.linear
    own = 2 * linear(found.x) / found.x.numel()

    _close(found.of_input, (ONES + own) @ linear.weight)


def test_a_stateful_layer_multiplies_the_gradient_by_what_it_kept() -> None:
    found = _gradients(blocks.Stateful())
    linear = found.module.linear

    _close(found.of_input, (0.5 + linear(found.x).tanh().abs()) @ linear.weight)


def test_an_unused_parameter_has_no_gradient() -> None:
    assert _gradients(blocks.Unused()).module.weight.grad is None


# ------------------------------------------------------------------------------------------ deferred weights


def test_a_deferred_weight_has_a_gradient_once_its_function_has_run() -> None:
    found = _gradients(blocks.Deferred())
    module = found.module
    run = module.build()

    assert module.weight.grad is None
    _close(found.of_input, ONES @ module.weight)
    run()
    _close(module.weight.grad, ONES.t() @ found.x)
    assert module.fires == {
        "deferred_weight_builder": 1,
        "deferred_weight_entry": 1,
        "deferred_weight_function": 1,
    }


def test_deferred_gradients_add_up_and_each_is_taken_once() -> None:
    module, x = _layer(blocks.Deferred()), _x()
    functions = []
    for _ in range(2):
        module(x.clone().requires_grad_()).sum().backward()
        functions.append(module.build())
    for run in functions:
        run()

    _close(module.weight.grad, 2 * ONES.t() @ x)
    module.build()()
    _close(module.weight.grad, 2 * ONES.t() @ x)


def test_a_stage_with_several_deferred_layers_has_one_function_for_all_and_others_none() -> None:
    module = nn.Sequential(_layer(blocks.Deferred()), _layer(blocks.Deferred()))
    module(_x().requires_grad_()).sum().backward()
    build = deferred_weights(module)

    assert deferred_weights(_layer(blocks.Linear())) is None
    assert build is not None
    build()()
    assert all(layer.weight.grad is not None for layer in module)


def test_a_rescaled_input_is_halved_in_place() -> None:
    module, x = _layer(blocks.Rescaled()), _x().detach()
    before = x.clone()
    y = module(x)

    assert torch.equal(x, before * 0.5)
    assert torch.equal(y, module.linear(before * 0.5))
