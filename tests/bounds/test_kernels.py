"""Kernels that fuse a formula err as their formula does, with and without each of its parts."""

import math

import pytest
import torch
import torch.nn.functional as F

from pipeconform.bounds.running_error import RunningError, UnknownOperation

pytestmark = pytest.mark.usefixtures("reproducible")

U = 2.0**-24


def errors(operation, *values, rounded=True):
    """The errors of a result and of the gradients of its sum, on values that were rounded once, or are exact."""
    leaves = [value.clone().requires_grad_(value.is_floating_point()) for value in values]
    with RunningError(samples=0) as analysis:
        found = operation(*((leaf / 3 if rounded and leaf.requires_grad else leaf) for leaf in leaves))
        if found.requires_grad:
            found.sum().backward()
    return [analysis.error(found), *(analysis.error(one.grad) for one in leaves if one.grad is not None)]


def alike(mine, theirs, *, at_most=1 + 1e-6):
    """Whether all of these are at least the others, and no more than so many times as large."""
    return all(
        bool((a >= b * (1 - 1e-6)).all() and (a <= b * at_most).all())
        for a, b in zip(mine, theirs, strict=True)
    )


# ------------------------------------------------------------------------------------------- activations


@pytest.mark.parametrize(("kind", "least", "most"), [("none", 1.5, 2.5), ("tanh", 5.0, 8.0)])
def test_the_gradient_of_gelu_errs_by_its_argument_and_by_the_cube_of_it_in_the_tanh_form(kind, least, most):
    """From 4 to 8, the one grows to about twice as much, the other to about eight times."""
    at_4, at_8 = (
        errors(lambda x: F.gelu(x, approximate=kind), torch.tensor([value]), rounded=False)[1].item()
        for value in (4.0, 8.0)
    )

    assert least * at_4 < at_8 < most * at_4


@pytest.mark.parametrize("kind", ["none", "tanh"])
@pytest.mark.parametrize("value", [-9.0, -5.0, -2.5, 0.0, 2.5, 5.0, 9.0])
def test_gelu_and_its_gradient_are_within_their_errors_far_from_zero_too(kind, value):
    x = torch.full((64,), value) + torch.linspace(-1, 1, 64)
    found = x.clone().requires_grad_()
    with RunningError(samples=0) as analysis:
        result = F.gelu(found, approximate=kind)
        result.sum().backward()
    exact = x.double().requires_grad_()
    right = F.gelu(exact, approximate=kind)
    right.sum().backward()

    for shown, expected in ((result, right), (found.grad, exact.grad)):
        assert bool(((shown.double() - expected).abs() <= analysis.error(shown)).all())


@pytest.mark.parametrize(
    ("p", "train", "factor"), [(0.5, True, 2.0), (0.75, True, 4.0), (0.5, False, 1.0), (1.0, True, 0.0)]
)
def test_dropout_scales_the_errors_of_what_it_keeps(p, train, factor):
    x = torch.rand(64) + 1
    with torch.no_grad(), RunningError(samples=0) as analysis:
        before = x / 3
        found, kept = torch.native_dropout(before, p, train)
    expected = analysis.error(before) * factor * kept

    assert bool((analysis.error(found)[~kept] == 0).all())
    assert alike([analysis.error(found)], [expected], at_most=1.0 if not factor else 5.0)


# --------------------------------------------------------------------------------------- single numbers


def test_of_a_single_number_softmax_is_exact():
    one = torch.tensor(2.0)
    for operation in (lambda x: x.softmax(0), lambda x: x.log_softmax(0)):
        assert [error.item() for error in errors(operation, one)] == [0, 0]
    assert errors(lambda x: x.cumsum(0), one)[0].item() == errors(lambda x: x, one)[0].item() > 0


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_any_shift_of_a_softmax_cancels(name):
    """Though exp(200) is too large for a float32."""
    x = torch.randn(4, 5)
    near = errors(lambda x: getattr(x, name)(1), x, rounded=False)
    far = errors(lambda x: getattr(x, name)(1), x.round(decimals=1) * 0 + 200, rounded=False)

    assert all(bool(one.isfinite().all()) for one in (*near, *far))
    assert bool((far[0] < 1024 * U).all())


def test_a_row_that_is_hidden_whole_is_zero_in_every_evaluation():
    x = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    hidden = torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]])
    with torch.no_grad(), RunningError(samples=0) as analysis:
        found = torch.ops.aten._safe_softmax(x / 3 + hidden, -1)

    assert found[1].tolist() == [0, 0]
    assert analysis.error(found)[1].tolist() == [0, 0]
    assert bool((analysis.error(found)[0] > 0).all())


# -------------------------------------------------------------------------------------------- attention

Q, K, V = (torch.randn(1, 4, 3, 6, generator=torch.Generator().manual_seed(n)) for n in range(3))


def attention(**how):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **how)


def test_a_scale_that_is_given_is_the_scale_that_is_usual():
    usual, given = (errors(attention(**how), Q, K, V) for how in ({}, {"scale": 1 / math.sqrt(6)}))

    assert alike(given, usual)


def test_what_is_hidden_by_being_later_errs_as_what_is_hidden_by_a_mask():
    mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -math.inf)
    causal = errors(attention(is_causal=True), Q, K, V)
    masked = errors(attention(attn_mask=mask), Q, K, V)

    assert alike(masked, causal, at_most=1.5)
    # the first query attends to the first key alone
    large = torch.cat([V[..., :1, :], 1000 * V[..., 1:, :]], -2)
    other = errors(attention(is_causal=True), Q, K, large)
    assert torch.equal(other[0][..., 0, :], causal[0][..., 0, :])
    assert bool((other[0][..., 1:, :] > 10 * causal[0][..., 1:, :]).all())


def test_heads_that_are_shared_err_as_the_same_heads_repeated():
    k, v = K[:, :2], V[:, :2]
    shared = errors(attention(enable_gqa=True), Q, k, v)
    repeated = errors(
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        ),
        Q,
        k,
        v,
    )

    assert alike(shared[:2], repeated[:2])
    # the gradients of shared heads are sums over both queries' heads: in one kernel, in any order
    assert alike(shared[2:], repeated[2:], at_most=3.0)


# ----------------------------------------------------------------------------------------------- losses

TARGET = torch.tensor([0, 2, 1, 2])
REDUCED = {
    "mse": lambda x, reduction: F.mse_loss(x, torch.ones(4, 3), reduction=reduction),
    "nll": lambda x, reduction: F.nll_loss(x, TARGET, reduction=reduction),
}


@pytest.mark.parametrize("name", REDUCED)
def test_a_mean_errs_as_the_sum_does_divided_by_the_number_of_terms(name):
    """In the loss and in the gradients, but for the rounding of the division."""
    x = torch.randn(4, 3)
    number = {"mse": 12, "nll": 4}[name]
    mean, total, each = (
        errors(lambda x, how=how: REDUCED[name](x, how), x) for how in ("mean", "sum", "none")
    )

    assert alike([one * number for one in mean], total, at_most=4.0)
    assert float(each[0].sum()) <= float(total[0]) <= 4 * float(each[0].sum())
    assert alike(total[1:], each[1:], at_most=2.0)


def test_targets_that_are_ignored_have_no_error_and_weights_scale_those_of_others():
    x = torch.randn(4, 3)
    weight = torch.tensor([1.0, 4.0, 16.0])

    def each(**how):
        return errors(lambda x: F.nll_loss(x, TARGET, reduction="none", **how), x)

    plain, weighted, ignored = each(), each(weight=weight), each(ignore_index=2)
    assert ignored[0].tolist() == [plain[0][0], 0, plain[0][2], 0]
    assert not ignored[1][1].any()
    factors = weight[TARGET].double()
    assert alike([weighted[0]], [plain[0] * factors], at_most=3.0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_sample_without_a_batch_errs_as_a_batch_of_one(reduction):
    x = torch.randn(5)
    alone = errors(lambda x: F.nll_loss(x, torch.tensor(3), reduction=reduction), x)
    batch = errors(lambda x: F.nll_loss(x[None], torch.tensor([3]), reduction=reduction), x)

    assert alike([one.flatten() for one in alone], [one.flatten() for one in batch], at_most=1.5)
    assert (alone[1] != 0).tolist() == [False, False, False, True, False]


# ------------------------------------------------------------------------- embedding, convolution, pooling


def test_a_row_that_pads_gets_no_gradient_and_every_other_row_one_addition_less_than_it_is_used():
    where = torch.tensor([[0, 0, 0], [1, 2, 2]])
    table = torch.ones(4, 2, requires_grad=True)
    with RunningError(samples=0) as analysis:
        F.embedding(where, table, padding_idx=2).backward(torch.full((2, 3, 2), 3.0))

    assert analysis.error(table.grad)[:, 0].tolist() == pytest.approx([2 * U * 9, 0, 0, 0])


def test_gradients_that_are_scaled_by_frequency_have_no_rule():
    table = torch.ones(4, 2, requires_grad=True)
    with RunningError(), pytest.raises(UnknownOperation, match="scaled by frequency"):
        F.embedding(torch.tensor([1]), table, scale_grad_by_freq=True).sum().backward()


def test_a_bias_of_a_convolution_errs_as_one_more_term():
    x, weight, bias = torch.randn(2, 3, 6), torch.randn(4, 3, 2), torch.full((4,), 100.0)
    plain = errors(F.conv1d, x, weight)
    with_bias = errors(F.conv1d, x, weight, bias)

    # 7 terms, of which the bias is the largest: it is rounded with every addition
    assert bool((with_bias[0] > 100 / 3 * U * 3).all())
    assert bool((with_bias[0] < 100 / 3 * U * 32).all())
    assert alike(with_bias[1:3], plain[1:3])


def test_a_group_of_channels_errs_as_if_it_were_alone():
    x, weight = torch.randn(2, 4, 6), torch.randn(6, 2, 2)
    both = errors(lambda x, w: F.conv1d(x, w, groups=2), x, weight)
    first = errors(F.conv1d, x[:, :2], weight[:3])

    assert alike([both[0][:, :3]], [first[0]], at_most=2.0)


def test_an_average_errs_by_no_more_than_its_terms_and_their_additions():
    x = torch.ones(1, 1, 4, 4)
    before = errors(lambda x: x, x)[0].max().item()
    found = errors(lambda x: F.avg_pool2d(x, 2), x)

    assert bool((found[0] >= before * (1 - 1e-6)).all())
    assert bool((found[0] <= before + 8 * U / 3).all())
