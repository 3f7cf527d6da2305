"""No operation has a larger error than its rule says."""

import math

import pytest
import torch
import torch.nn.functional as F

from pipeconform.bounds.ball import Ball, Sampler, Unit
from pipeconform.bounds.rules import Call
from pipeconform.bounds.running_error import RULES, RunningError, UnknownOperation

pytestmark = pytest.mark.usefixtures("reproducible")

OPERATIONS = {
    "add": lambda a, b: a + b * 3,
    "sub": lambda a, b: 2 - a - b,
    "mul": lambda a, b: a * b / 3,
    "div": lambda a, b: a / (b.abs() + 0.1),
    "inverse": lambda a, b: 1 / (a.abs() + 0.1) - b.reciprocal(),
    "abs": lambda a, b: (a - b).abs().sum(0),
    "mm": lambda a, b: a @ b.T,
    "bmm": lambda a, b: torch.bmm(a.view(2, 3, 4), b.view(2, 4, 3)),
    "baddbmm": lambda a, b: torch.baddbmm(
        torch.ones(2, 3, 3, dtype=a.dtype), a.view(2, 3, 4), b.view(2, 4, 3), beta=0.3, alpha=0.7
    ),
    "addmm": lambda a, b: torch.addmm(b[:, :1], a, b[:4], beta=0.5, alpha=3),
    "mv": lambda a, b: a @ b[0],
    "dot": lambda a, b: torch.dot(a.flatten(), b.flatten()),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "sum": lambda a, b: (a * b).sum() + a.sum(0).sum(),
    "mean": lambda a, b: (a * b).mean(1) + a.mean(),
    "var": lambda a, b: (a * 3 + b).var(1) + a.var(0, correction=0)[0],
    "std": lambda a, b: (a * 3 + b).std(1),
    "var_mean": lambda a, b: sum(torch.var_mean(a + 100 * b.mean(), 1)),
    "norm": lambda a, b: (a * b).norm() + b.norm(dim=1) + a.norm(1) + a.norm(float("inf")),
    "cumsum": lambda a, b: (a * b).cumsum(1).cumsum(0),
    "logsumexp": lambda a, b: (a * 5 + b).logsumexp(1),
    "softmax": lambda a, b: (a * 5).softmax(1) * b,
    "log_softmax": lambda a, b: (a * 5).log_softmax(0) * b,
    "exp": lambda a, b: (a * b).exp(),
    "log": lambda a, b: (a.abs() + 0.1).log() * b,
    "sqrt": lambda a, b: (a * a + 0.01).sqrt() * (b * b + 0.01).rsqrt(),
    "trigonometry": lambda a, b: (a * 3).sin() * (b * 3).cos() + (a * b).erf(),
    "pow": lambda a, b: (a.abs() + 0.1) ** 1.5 + b**3 + a**2 + (b.abs() + 0.1) ** -0.5 + 2**a,
    "sigmoid": lambda a, b: (a * 3).sigmoid() * b.tanh(),
    "gelu": lambda a, b: F.gelu(a * 3) + F.gelu(b * 3, approximate="tanh"),
    "silu": lambda a, b: F.silu(a * 3) * b,
    "relu": lambda a, b: F.relu(a * b) + F.relu6(a * 9),
    "clamp": lambda a, b: (a * b).clamp(-0.5, 0.5) + b.clamp_min(0.1) + a.clamp(max=0.2),
    "elu": lambda a, b: F.elu(a * b) + F.leaky_relu(a - b) + F.softplus(a * 2) + F.hardswish(b * 3),
    "more_activations": lambda a, b: F.mish(a * b) + F.logsigmoid(a) + F.hardsigmoid(b) + F.hardtanh(a),
    "glu": lambda a, b: F.glu(a * b),
    "extremes": lambda a, b: torch.maximum(a * b, a + b) + torch.minimum(a, b),
    "amax": lambda a, b: (a * b).amax(1) + (a * b).max(1).values + (a + b).min(0).values[0],
    "where": lambda a, b: torch.where(a * b > 0.1, a * 3, b * b),
    "masked_fill": lambda a, b: (a * b).masked_fill(a > 0, 0.5) + (a * b).masked_fill_(b > 0, -1),
    "lerp": lambda a, b: torch.lerp(a * b, b, 0.3) + torch.lerp(a, b * b, a.sigmoid()),
    "addcmul": lambda a, b: torch.addcmul(a, a * b, b, value=0.3).addcdiv(a, b * b + 1, value=0.7),
    "cat": lambda a, b: torch.cat([a * b, b]).roll(1, 0) * torch.stack([a, b]).flatten(0, 1),
    "split": lambda a, b: torch.cat([x * y for x, y in zip((a * b).split(2, 1), b.chunk(2, 1), strict=True)]),
    "index": lambda a, b: (a * b)[[0, 0, 2]] + (a * b)[:, [1, 1, 2, 0]][:3],
    "index_add": lambda a, b: (a * b).index_add(0, torch.tensor([0, 0, 1, 2, 2, 2]), b * b),
    "scatter_add": lambda a, b: (a * b).scatter_add(0, torch.zeros(6, 4, dtype=torch.int64), b * b),
    "gather": lambda a, b: (a * b).gather(1, torch.tensor([[0, 0, 3]] * 6)),
    "pad": lambda a, b: F.pad(a * b, (1, 2), value=0.3) + F.pad(a, (2, 1)),
    "triangle": lambda a, b: (a * b).tril() + (a * b).triu(1) * 3,
    "flip": lambda a, b: (a * b).flip(1) + (a + b).repeat(2, 1)[:6],
    "unsqueeze": lambda a, b: (a * b).unsqueeze(1).expand(6, 3, 4).permute(2, 0, 1).reshape(4, 18) * 0.3,
    "embedding": lambda a, b: F.embedding(torch.tensor([[0, 1, 1], [5, 1, 0]]), a * b),
    "layer_norm": lambda a, b: F.layer_norm(a * b + 10, (4,), b[0], b[1]),
    "layer_norm_2": lambda a, b: F.layer_norm((a * b).view(2, 3, 4), (3, 4), b[:3], a[:3]),
    "rms_norm": lambda a, b: F.rms_norm(a * b, (4,), b[0], eps=1e-5),
    "batch_norm": lambda a, b: F.batch_norm(a * b + 5, None, None, b[0], b[1], training=True),
    "batch_norm_eval": lambda a, b: F.batch_norm(
        a * b, a[0].detach(), b[0].detach() ** 2, b[0], b[1], training=False
    ),
    "group_norm": lambda a, b: F.group_norm((a * b + 3).view(2, 4, 3), 2, b[0], b[1]),
    "attention": lambda a, b: F.scaled_dot_product_attention(
        a.view(1, 1, 6, 4), b.view(1, 1, 6, 4), (a * b).view(1, 1, 6, 4)
    ),
    "masked_attention": lambda a, b: F.scaled_dot_product_attention(
        a.view(1, 1, 6, 4),
        b.view(1, 1, 6, 4),
        (a * b).view(1, 1, 6, 4),
        attn_mask=torch.ones(6, 6).bool().tril(),
    ),
    "grouped_attention": lambda a, b: F.scaled_dot_product_attention(
        (a * b).view(1, 4, 3, 2),
        b[:3].view(1, 2, 3, 2),
        a[3:].view(1, 2, 3, 2),
        is_causal=True,
        enable_gqa=True,
    ),
    "masked_grouped_attention": lambda a, b: F.scaled_dot_product_attention(
        a.view(2, 4, 3, 1),
        b[:3].view(2, 2, 3, 1),
        (a * b)[3:].view(2, 2, 3, 1),
        attn_mask=torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1]]).bool().expand(2, 1, 3, 3),
        enable_gqa=True,
    ),
    "mse": lambda a, b: F.mse_loss(a * b, b) + F.mse_loss(a, b * 2, reduction="sum"),
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a * b, b) + F.huber_loss(a, b) + F.l1_loss(a * a, b),
    "nll": lambda a, b: F.nll_loss((a * b).log_softmax(1), torch.tensor([0, 1, 2, 3, 3, -100])),
    "nll_of_one": lambda a, b: F.nll_loss((a * b)[0].log_softmax(0), torch.tensor(2)) + a.sum() * b.sum(),
    "weighted_nll": lambda a, b: F.cross_entropy(
        a * b, torch.tensor([0, 1, 2, 3, 3, 1]), torch.tensor([0.3, 1.0, 2.0, 0.1], dtype=a.dtype)
    ),
    "smoothed": lambda a, b: F.cross_entropy(a * b, torch.tensor([0, 1, 2, 3, 3, 1]), label_smoothing=0.1),
    "summed": lambda a, b: F.cross_entropy(a * b, torch.tensor([0, 1, 2, 3, 3, 1]), reduction="sum"),
    "bce": lambda a, b: F.binary_cross_entropy_with_logits(a * b, b.sigmoid()),
    "kl": lambda a, b: F.kl_div((a * b).log_softmax(1), b.softmax(1), reduction="batchmean"),
    "conv": lambda a, b: F.conv1d(a.view(2, 3, 4), b.view(4, 3, 2), b[0], padding=1),
    "grouped_conv": lambda a, b: F.conv1d(a.view(2, 3, 4), b.view(6, 1, 4)[:, :, :3], groups=3, stride=2),
    "transposed_conv": lambda a, b: F.conv_transpose1d(a.view(2, 3, 4), b.view(3, 4, 2)),
    "avg_pool": lambda a, b: F.avg_pool2d((a * b).view(1, 1, 6, 4), 2),
    "in_place": lambda a, b: (a * b).add_(b, alpha=0.3).mul_(b).div_(3).sigmoid_(),
    "slices": lambda a, b: torch.zeros(6, 4, dtype=a.dtype).index_put(
        (torch.tensor([0, 0, 1, 2, 3, 5]),), a * b, accumulate=True
    ),
    "select": lambda a, b: (a * b)[1] * (a * b)[:, 1:3].sum() + (a @ b.T).diagonal()[:4],
}


def evaluate(operation, inputs, dtype=None):
    a, b = (x.to(dtype, copy=True).requires_grad_() for x in inputs)
    result = operation(a, b)
    weights = (torch.arange(result.numel()) % 7 - 2).to(result.dtype).view(result.shape)
    (result * weights).sum().backward()
    return [result, *(x.grad for x in (a, b) if x.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_errs_by_no_more_than_its_rule_says(name, dtype):
    """Values and gradients of each operation against float64, in every precision; E is neither 0 nor ∞."""
    operation = OPERATIONS[name]
    for seed in range(2):
        torch.manual_seed(seed)
        inputs = [torch.randn(6, 4).to(dtype), torch.randn(6, 4).to(dtype)]
        plain = evaluate(operation, inputs, dtype)
        with RunningError() as analysis:
            mine = evaluate(operation, inputs, dtype)
        exact = evaluate(operation, inputs, torch.float64)

        assert [torch.equal(x, y) for x, y in zip(mine, plain, strict=True)] == [True] * len(plain)
        for x, y in zip(mine, exact, strict=True):
            allowed = analysis.error(x)
            difference = (x.detach().double() - y.detach()).abs()
            # Float64 itself is no more exact than E says: it may use up twice that.
            assert bool((difference <= (2 if dtype == torch.float64 else 1) * allowed).all())
            if dtype != torch.bfloat16:
                assert bool(allowed.isfinite().all())
                assert bool((allowed > 0).any())


# ------------------------------------------------------------------------------------------------ dimensions


def certain_error(operation, values):
    """The error of an operation on values that were rounded once; without samples, so that it is exact."""
    with RunningError(samples=0) as analysis:
        found = operation(values / 3)
    return analysis.error(found)


ALONG = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "norm_1": lambda x, dim: torch.linalg.vector_norm(x, 1, dim=dim),
    "norm_inf": lambda x, dim: torch.linalg.vector_norm(x, math.inf, dim=dim),
    "amax": lambda x, dim: x.amax(dim),
    "amin": lambda x, dim: x.amin(dim),
    "max": lambda x, dim: x.max(dim).values,
    "min": lambda x, dim: x.min(dim).values,
    "var": lambda x, dim: x.var(dim),
    "var_0": lambda x, dim: x.var(dim, correction=0),
    "std": lambda x, dim: x.std(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "cumsum": lambda x, dim: x.cumsum(dim),
}


@pytest.mark.parametrize("name", ALONG)
def test_a_row_errs_as_if_it_were_alone(name):
    """Along the last dim, the first, or a dim counted from the end: the other rows have no say."""
    along, x = ALONG[name], torch.randn(4, 5)
    alone = torch.stack([certain_error(lambda row: along(row, 0), row) for row in x])

    for dim in (1, -1):
        assert torch.equal(certain_error(lambda t, dim=dim: along(t, dim), x), alone)
    turned = certain_error(lambda t: along(t, 0), x.T.contiguous())
    assert torch.equal(turned if turned.ndim == 1 else turned.T, alone)


WHOLE = {
    "sum": lambda x, **dims: x.sum(**dims),
    "mean": lambda x, **dims: x.mean(**dims),
    "norm": torch.linalg.vector_norm,
    "norm_1": lambda x, **dims: torch.linalg.vector_norm(x, 1, **dims),
    "norm_inf": lambda x, **dims: torch.linalg.vector_norm(x, math.inf, **dims),
    "amax": lambda x, **dims: x.amax(**dims),
    "amin": lambda x, **dims: x.amin(**dims),
    "var": lambda x, **dims: x.var(**dims),
    "std": lambda x, **dims: x.std(**dims),
}


@pytest.mark.parametrize("name", WHOLE)
def test_all_dims_are_one_long_row_and_kept_dims_change_no_error(name):
    whole, x = WHOLE[name], torch.randn(2, 3, 4)
    flat = certain_error(lambda t: whole(t.reshape(-1), dim=0), x)

    for dims in ({}, {"dim": (0, 1, 2)}, {"dim": (-1, 0, 1)}):
        assert torch.allclose(
            certain_error(lambda t, dims=dims: whole(t, **dims), x), flat, rtol=1e-6, atol=0
        )
    two = certain_error(lambda t: whole(t, dim=(0, 2)), x)
    assert two.shape == (3,)
    kept = certain_error(lambda t: whole(t, dim=(2, 0), keepdim=True), x)
    assert kept.shape == (1, 3, 1)
    assert torch.allclose(kept.flatten(), two, rtol=1e-6, atol=0)
    for number in range(3):
        one = certain_error(lambda t: whole(t.reshape(-1), dim=0), x[:, number])
        assert torch.allclose(two[number], one, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_kept_dim_changes_no_error_of_a_largest_or_smallest_element(name):
    x = torch.randn(4, 5)

    for dim in (0, 1):
        gone, kept = (
            certain_error(lambda t, keep=keep, dim=dim: getattr(t, name)(dim, keepdim=keep).values, x)
            for keep in (False, True)
        )
        assert torch.equal(kept, gone.unsqueeze(dim))


# ------------------------------------------------------------------------------------------------- decisions

DECIDED = {
    "floor": (torch.floor, 1.0, 0.4, 1),
    "ceil": (torch.ceil, 1.0, 0.4, 1),
    "round": (torch.round, 0.5, 0.4, 1),
    "trunc": (torch.trunc, -1.0, -0.4, 1),
    "sign": (lambda x: torch.sign(x - 1), 1.0, 0.4, 2),
    "sgn": (lambda x: torch.sgn(x - 1), 1.0, 0.4, 2),
    "divided and rounded down": (lambda x: torch.div(x, 0.5, rounding_mode="floor"), 1.0, 0.4, 1),
    "divided and rounded to zero": (lambda x: torch.div(x, -0.5, rounding_mode="trunc"), 1.0, 0.4, 1),
    **{
        name: (lambda x, name=name: getattr(torch, name)(x, 1.0), 1.0, 0.4, 1)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    "not": (lambda x: torch.logical_not(x > 1), 1.0, 0.4, 1),
    "and": (lambda x: (x > 1) & (torch.ones(1) > 0), 1.0, 0.4, 1),
    "the other one of and": (lambda x: (torch.ones(1) > 0) & (x > 1), 1.0, 0.4, 1),
    "where": (lambda x: torch.where(x > 1, 10.0, 20.0), 1.0, 0.4, 10),
    "masked_fill": (lambda x: torch.ones(1).masked_fill(x > 1, 5.0), 1.0, 0.4, 4),
    "count": (lambda x: (x > 1).sum(), 1.0, 0.4, 1),
    "the index of the largest": (lambda x: torch.cat([x, torch.ones(1)]).max(0).indices, 1.0, 0.4, math.inf),
    "the index of the smallest": (lambda x: torch.cat([x, torch.ones(1)]).min(0).indices, 1.0, 1.4, math.inf),
}
"""An operation, a value at an edge and one beside, and how far evaluations may be apart at the edge."""


@pytest.mark.parametrize("name", DECIDED)
def test_a_decision_is_in_doubt_at_its_edge_and_nowhere_else(name):
    operation, edge, beside, apart = DECIDED[name]

    assert certain_error(lambda x: operation(x * 3), torch.tensor([edge])).item() == pytest.approx(apart)
    assert certain_error(lambda x: operation(x * 3), torch.tensor([beside])).item() == 0


@pytest.mark.parametrize("name", [name for name in DECIDED if not name.startswith("divided")])
def test_a_decision_about_exact_numbers_is_in_no_doubt(name):
    operation, edge, *_ = DECIDED[name]
    with RunningError(samples=0) as analysis:
        exact = operation(torch.tensor([edge]))
    assert analysis.error(exact).item() == 0


def test_what_is_finite_is_no_nan_and_infinite_in_no_evaluation():
    for special in (torch.isnan, torch.isinf):
        assert certain_error(special, torch.tensor([1.0, 2.0])).tolist() == [0, 0]


def test_a_number_that_was_rounded_may_be_another_integer():
    assert certain_error(lambda x: (x * 3).to(torch.int64), torch.tensor([2.0])).item() == pytest.approx(1)
    with RunningError(samples=0) as analysis:
        assert analysis.error(torch.tensor([2.0]).to(torch.int64)).item() == 0


@pytest.mark.parametrize(
    ("limits", "inside", "at", "beyond"),
    [
        ({"min": -1.0, "max": 1.0}, 0.5, 1.0, 2.0),
        ({"min": -1.0, "max": 1.0}, 0.5, -1.0, -2.0),
        ({"min": 0.25}, 0.5, 0.25, 0.1),
        ({"max": 0.25}, 0.1, 0.25, 0.5),
    ],
)
def test_a_limited_value_is_certain_beyond_its_limits_only(limits, inside, at, beyond):
    def error(value):
        return certain_error(lambda x: (x * 3).clamp(**limits), torch.tensor([value])).item()

    def unlimited(value):
        return certain_error(lambda x: x * 3, torch.tensor([value])).item()

    assert error(inside) == pytest.approx(unlimited(inside)) != 0
    assert error(at) == pytest.approx(unlimited(at)) != 0
    assert error(beyond) == 0


def test_a_constant_lies_where_the_results_do(monkeypatch):
    """On the device of the first output that is there, or on the CPU."""
    monkeypatch.setattr(Ball, "constant", lambda value, unit, like: like)
    exact, there = Unit.of(torch.float32, Sampler(0)), torch.ones(2)

    def place(*outputs):
        return Call("mul", None, {}, outputs, exact, lambda tensor: pytest.fail("a number")).wrap(0.5)

    assert place(there, torch.ones(1)) is there
    assert place(None, there) is there
    assert place(None).device.type == "cpu"


# ----------------------------------------------------------------- exactly at an edge, with numbers by hand


def recorded(mid, rad, samples=0):
    """A value and its error as they were recorded, to the last digit."""
    unit = Unit.of(torch.float64, Sampler(samples))
    value, error = (torch.tensor([one], dtype=torch.float64) for one in (mid, rad))
    dev = None if not samples else error * unit.sampler.draw(value)
    return Ball.recorded(value, error, unit, mass=value.abs(), terms=1, dev=dev)


def applied(name, of, **arguments):
    """A rule on one recorded value."""
    value = of.mid.clone()
    call = Call(name, None, {"self": value, **arguments}, [value], of.unit, lambda tensor: of)
    return RULES[name](call)


@pytest.mark.parametrize(
    ("name", "limits", "mid", "is_certain"),
    [
        ("clamp", {"max": 1.0}, 2.0, False),
        ("clamp", {"max": 1.0}, 2.0 + 2**-40, True),
        ("clamp", {"min": 1.0}, 0.0, False),
        ("clamp", {"min": 1.0}, -(2**-40), True),
        ("relu", {}, -1.0, False),
        ("relu", {}, -1.0 - 2**-40, True),
    ],
)
def test_beyond_a_limit_a_value_is_certain_if_no_evaluation_reaches_the_limit(name, limits, mid, is_certain):
    """Evaluations are up to 2·0.5 away from the recorded one."""
    found = applied(name, recorded(mid, 0.5), **limits)

    assert found.rad.item() == (0 if is_certain else pytest.approx(0.5))


@pytest.mark.parametrize(
    ("name", "limits", "mid", "is_itself"),
    [
        ("clamp", {"min": 0.0, "max": 2.0}, 1.0, True),
        ("clamp", {"min": 0.0, "max": 2.0}, 1.0 - 2**-40, False),
        ("clamp", {"min": 0.0, "max": 2.0}, 1.0 + 2**-40, False),
        ("relu", {}, 1.0, True),
        ("relu", {}, 1.0 - 2**-40, False),
        ("abs", {}, 1.0 + 2**-40, True),
        ("abs", {}, 1.0, False),
    ],
)
def test_inside_its_limits_a_value_is_itself_error_and_all(name, limits, mid, is_itself):
    """So nothing is left of the error of their difference, as samples of it show; at 0, a size has a kink."""
    of = recorded(mid, 0.5, samples=64)
    left = (applied(name, of, **limits) - of).rad.item()

    assert left < 1e-14 if is_itself else left > 0.1


@pytest.mark.parametrize(("off", "is_in_doubt"), [(2**-30, True), (2**-29, False)])
def test_two_values_are_told_apart_that_no_evaluations_bring_together(off, is_in_doubt):
    """Each difference is up to 0.5 off, and a little for the analysis itself: 2**-30 of it."""
    of = recorded(1.0 + off, 0.5)
    found = applied("gt", of, other=0.0)

    assert found.rad.item() == (pytest.approx(1) if is_in_doubt else 0)


# ------------------------------------------------------------------------------- formulas, worked by hand

U = 2.0**-24


def of_exact(operation, *values):
    """The largest error of an operation on exact numbers."""
    with RunningError(samples=0) as analysis:
        found = operation(*values)
    return analysis.error(found).max().item()


@pytest.mark.parametrize(
    ("factors", "size", "roundings"),
    [
        ({}, 4 * 1 + 1, 4 + 1),
        ({"alpha": 3}, 4 * 3 + 1, 4 + 1 + 2),
        ({"beta": 0.5}, 4 + 0.5, 4 + 1 + 2),
        ({"alpha": 3, "beta": 0.5}, 4 * 3 + 0.5, 4 + 1 + 4),
        ({"beta": 0}, 4, 4 + 1),
        ({"alpha": -3, "beta": -0.5}, 4 * 3 + 0.5, 4 + 1 + 4),
    ],
    ids=lambda value: (
        ",".join(f"{key}={one}" for key, one in value.items()) if isinstance(value, dict) else ""
    ),
)
@pytest.mark.parametrize("name", ["addmm", "addmv", "baddbmm"])
def test_a_product_that_is_added_is_rounded_for_every_term_and_twice_for_every_factor(
    name, factors, size, roundings
):
    """Four products of ones, and a one to which they are added."""
    shapes = {
        "addmm": ((1, 1), (1, 4), (4, 1)),
        "addmv": ((1,), (1, 4), (4,)),
        "baddbmm": ((1, 1, 1), (1, 1, 4), (1, 4, 1)),
    }
    base, first, second = (torch.ones(shape) for shape in shapes[name])

    assert of_exact(lambda *of: getattr(torch, name)(*of, **factors), base, first, second) == pytest.approx(
        roundings * size * U, rel=1e-6
    )


def test_what_is_added_to_a_product_adds_its_own_error_times_its_factor():
    ones = torch.ones(1, 4)
    exact, inexact, half = (
        certain_error(
            lambda base, how=how: torch.addmm(how[0](base), ones, ones.T, beta=how[1]), torch.ones(1, 1)
        ).item()
        for how in (
            (lambda base: torch.ones(1, 1) / 2, 1),
            (lambda base: base * 1.5, 1),
            (lambda base: base * 1.5, 0.5),
        )
    )
    own = certain_error(lambda base: base * 1.5, torch.ones(1, 1)).item()

    assert inexact == pytest.approx(exact + own, rel=0.05)
    assert half < inexact + 8 * U


@pytest.mark.parametrize(
    ("exponent", "roundings", "value"),
    [(2.0, 6, 9.0), (1.0, 5, 3.0), (3.0, 7, 27.0), (0.5, 4.5, 3**0.5), (-1.0, 5, 1 / 3), (-2.0, 6, 1 / 9)],
)
def test_a_power_of_an_exact_number_is_rounded_by_its_kernel_only(exponent, roundings, value):
    assert of_exact(lambda x: x**exponent, torch.tensor([3.0])) == pytest.approx(
        roundings * value * U, rel=1e-5
    )


@pytest.mark.parametrize(
    ("exponent", "slope", "bend"),
    [(2.0, 6.0, 2.0), (3.0, 27.0, 18.0), (1.5, 2.598, 0.433), (-1.0, 1 / 9, 2 / 27)],
)
def test_a_power_of_an_inexact_number_errs_by_slope_and_bend(exponent, slope, bend):
    """Of 3 ± 0.001: the bend is the second derivative there, or a little beyond."""
    found = applied("pow", recorded(3.0, 0.001), exponent=exponent)
    first, second = slope * 0.001, 2 * bend * 0.001**2

    assert found.rad.item() == pytest.approx(first + second, rel=1e-4)


def test_a_root_of_what_may_be_zero_errs_by_the_root_of_its_error():
    assert applied("pow", recorded(0.0, 0.01), exponent=0.5).rad.item() == pytest.approx(0.1, rel=1e-6)
    assert applied("pow", recorded(0.0, 0.01), exponent=2.0).rad.item() == pytest.approx(
        4 * 0.01**2, rel=1e-6
    )


def test_a_variance_over_less_terms_than_are_taken_off_is_not_scaled():
    x = torch.tensor([1.0, 2.0, 4.0])
    with RunningError(samples=0) as analysis:
        y = x * 1.5
        none, one, two = (y.var(0, correction=correction) for correction in (0, 1, 2))
        standard = y.std(0)
    biased = analysis.error(none).item()

    assert analysis.error(one).item() == pytest.approx(biased * 3 / 2, rel=0.2)
    assert analysis.error(two).item() == pytest.approx(biased * 3, rel=0.2)
    # the root's slope is 1 / (2 * deviation)
    assert analysis.error(standard).item() == pytest.approx(
        analysis.error(one).item() / (2 * float(y.std(0))), rel=0.2
    )


@pytest.mark.parametrize("reduction", ["unbiased", "correction"])
def test_a_variance_says_what_is_taken_off_in_two_ways(reduction):
    x = torch.randn(2, 5)
    by_name = {
        "unbiased": ({"unbiased": True}, {"unbiased": False}),
        "correction": ({"correction": 1}, {"correction": 0}),
    }
    one, none = (certain_error(lambda t, how=how: t.var(1, **how), x) for how in by_name[reduction])
    usual = certain_error(lambda t: t.var(1), x)

    assert torch.equal(one, usual)
    assert bool((none < usual).all())


def test_factors_of_what_is_added_scale_its_error():
    x = torch.ones(1)
    plain, twice, minus, rest = (
        certain_error(lambda t, alpha=alpha: torch.add(torch.zeros(1), t * 1.5, alpha=alpha), x).item()
        for alpha in (1, 2, -1, 0.5)
    )
    assert minus == pytest.approx(plain)
    assert twice > 1.9 * plain
    assert rest < plain
    reverse = certain_error(lambda t: torch.rsub(t * 1.5, torch.zeros(1), alpha=2), x).item()
    assert reverse == pytest.approx(twice)


def test_a_quotient_that_is_not_rounded_to_an_integer_keeps_its_own_error():
    assert of_exact(torch.div, torch.tensor([1.0]), torch.tensor([4.0])) == pytest.approx(2 * U / 4, rel=1e-6)
    assert (
        of_exact(
            lambda a, b: torch.div(a, b, rounding_mode="floor"), torch.tensor([1.0]), torch.tensor([4.0])
        )
        == 0
    )


def test_exponents_that_are_tensors_must_be_single_exact_numbers():
    x = torch.tensor([3.0])
    assert of_exact(lambda x: x ** torch.tensor(2.0), x) == of_exact(lambda x: x**2.0, x)
    with RunningError(), pytest.raises(UnknownOperation, match="a tensor exponent"):
        x ** torch.tensor([2.0, 3.0])
    with RunningError(), pytest.raises(UnknownOperation, match="a tensor exponent"):
        x ** (torch.tensor(2.0) / 3)


@pytest.mark.parametrize("order", [3.0, 0.0, -math.inf])
def test_norms_without_a_rule_are_refused(order):
    with RunningError(), pytest.raises(UnknownOperation, match=f"a norm of order {order}"):
        torch.linalg.vector_norm(torch.ones(3), order)
