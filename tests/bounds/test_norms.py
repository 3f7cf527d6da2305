"""Errors of normalisations are those of their formulas: they grow with the weights and not with what is not there."""

import pytest
import torch
import torch.nn.functional as F

from pipeconform.bounds.running_error import RunningError

pytestmark = pytest.mark.usefixtures("reproducible")

SHAPE = (4, 6, 5)
NORMS = {
    "layer": lambda x, w, b: F.layer_norm(x, (5,), w, b),
    "layer of two dims": lambda x, w, b: F.layer_norm(x, (6, 5), w, b),
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "batch in evaluation": lambda x, w, b: F.batch_norm(
        x, torch.full((6,), 0.1), torch.full((6,), 2.0), w, b, training=False
    ),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
}
SIZES = {"layer": (5,), "layer of two dims": (6, 5)}


def errors(name, *, weight=None, bias=None):
    """The errors of the result and of all gradients."""
    torch.manual_seed(0)
    x = torch.randn(SHAPE).requires_grad_()
    given = [None if one is None else one.clone().requires_grad_() for one in (weight, bias)]
    with RunningError(samples=0) as analysis:
        found = NORMS[name](x, *given)
        found.backward(torch.ones(SHAPE).cumsum(0) * 0.3)
    return [analysis.error(found), *(analysis.error(one.grad) for one in (x, *given) if one is not None)]


def size_of(name):
    return SIZES.get(name, (6,))


@pytest.mark.parametrize("name", NORMS)
def test_weights_64_times_as_large_make_errors_64_times_as_large(name):
    """But for the gradient of the weights, which does not depend on them."""
    weight = torch.rand(size_of(name)) + 0.5
    result, into_x, into_weight = errors(name, weight=weight)
    large = errors(name, weight=64 * weight)

    torch.testing.assert_close(large[0], 64 * result, rtol=1e-6, atol=0)
    torch.testing.assert_close(large[1], 64 * into_x, rtol=1e-6, atol=0)
    torch.testing.assert_close(large[2], into_weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NORMS)
def test_weights_of_one_add_no_more_than_their_own_rounding(name):
    ones, zeros = torch.ones(size_of(name)), torch.zeros(size_of(name))
    plain = errors(name)
    weighted, shifted = errors(name, weight=ones), errors(name, weight=ones, bias=zeros)

    for without, with_one in zip(plain, weighted[:2], strict=True):
        assert bool((with_one >= without * (1 - 1e-6)).all())
        assert bool((with_one <= 2 * without).all())
    assert bool((shifted[0] >= weighted[0] * (1 - 1e-6)).all())
    assert bool((shifted[0] <= 2 * weighted[0]).all())


@pytest.mark.parametrize("name", NORMS)
def test_a_bias_adds_its_rounding_and_changes_no_gradient(name):
    """A sum near 1000 is rounded to its last digit, which is 2**-14."""
    ones = torch.ones(size_of(name))
    near, far = (errors(name, weight=ones, bias=bias) for bias in (0 * ones, 1000 * ones))

    assert bool((far[0] > 2.0**-16).all())
    assert bool((far[0] < 2.0**-11).all())
    for one, other in zip(near[1:], far[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", [name for name in NORMS if not name.startswith("batch")])
def test_one_sample_has_the_errors_that_it_has_among_others(name):
    def of(x):
        with RunningError(samples=0) as analysis:
            found = NORMS[name](x, None, None)
        return analysis.error(found)

    x = torch.randn(SHAPE)
    together = of(x)

    for number in range(len(x)):
        torch.testing.assert_close(of(x[number : number + 1])[0], together[number], rtol=1e-6, atol=0)


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_running_statistics_err_by_what_is_new_in_them(momentum):
    """The old values are exact, and are scaled: they err by roundings only, and so does what a batch adds."""
    torch.manual_seed(0)
    x = torch.randn(SHAPE) + 3
    mean, variance = torch.zeros(6), torch.ones(6)
    with RunningError(samples=0) as analysis:
        F.batch_norm(x, mean, variance, None, None, training=True, momentum=momentum)

    exact = x.double()
    right = [
        momentum * exact.mean((0, 2)),
        (1 - momentum) + momentum * exact.var((0, 2)),
    ]
    for shown, value in zip((mean, variance), right, strict=True):
        off, allowed = (shown.double() - value).abs(), analysis.error(shown)
        assert bool((off <= allowed).all())
        assert bool((allowed < 1e-4 * value.abs()).all())


def test_statistics_that_are_not_kept_have_no_errors():
    x = torch.randn(SHAPE)
    with RunningError(samples=0) as analysis:
        found = F.batch_norm(x, None, None, None, None, training=True)
        kept = F.batch_norm(x, torch.zeros(6), torch.ones(6), None, None, training=True)

    assert torch.equal(analysis.error(found), analysis.error(kept))


@pytest.mark.parametrize("name", [name for name in NORMS if not name.startswith("batch")])
def test_an_empty_batch_has_no_errors(name):
    """A microbatch is empty where a batch was too small; batch norm refuses it."""
    weight = torch.ones(size_of(name)).requires_grad_()
    x = torch.randn(0, *SHAPE[1:]).requires_grad_()
    with RunningError(samples=4) as analysis:
        found = NORMS[name](x, weight, None)
        found.sum().backward()

    assert analysis.error(found).numel() == analysis.error(x.grad).numel() == 0
    assert not analysis.error(weight.grad).any()
