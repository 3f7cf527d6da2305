import copy
import gc
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeconform.bounds.numerics import compare, ratio
from pipeconform.bounds.running_error import RunningError, UnknownOperation
from pipeconform.observe.array import Array

pytestmark = pytest.mark.usefixtures("reproducible")


# -- models ----------------------------------------------------------------------------------------------


class FixedDropout(nn.Module):
    """Dropout with a recorded mask, as the oracle replays it."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mask", (torch.rand(width) < 0.7).float())

    def forward(self, x):
        return x * self.mask.to(x.dtype) / 0.7


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:-1], 3, 2, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class PlainAttention(Attention):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(torch.softmax(q @ k.mT / math.sqrt(x.shape[-1]), -1) @ v)


class BatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Mlp(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), act

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


BLOCKS = {
    "linear": lambda w: nn.Linear(w, w),
    "gelu": lambda w: Mlp(w, nn.GELU()),
    "gelu_tanh": lambda w: Mlp(w, nn.GELU(approximate="tanh")),
    "tanh": lambda w: Mlp(w, nn.Tanh()),
    "relu": lambda w: Mlp(w, nn.ReLU()),
    "silu": lambda w: Mlp(w, nn.SiLU()),
    "layer_norm": nn.LayerNorm,
    "rms_norm": lambda w: nn.RMSNorm(w, eps=1e-5),
    "batch_norm": BatchNorm,
    "attention": Attention,
    "plain_attention": PlainAttention,
    "dropout": FixedDropout,
}


class Model(nn.Module):
    """A few blocks between an embedding (or features) and a loss; the width is 6."""

    def __init__(self, blocks, loss):
        super().__init__()
        self.embedding, self.loss = nn.Embedding(7, 6), loss
        self.blocks = nn.Sequential(*[BLOCKS[name](6) for name in blocks])
        self.head = nn.Linear(6, 7)

    def forward(self, x, target):
        y = self.head(self.blocks(self.embedding(x) if x.dtype == torch.int64 else x))
        if self.loss == "cross_entropy":
            return F.cross_entropy(y.flatten(0, 1), target.flatten())
        goal = F.one_hot(target, 7).to(y.dtype)
        return F.mse_loss(y, goal) if self.loss == "mse" else ((y - goal) ** 2).mean()


def strided(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def train(model, batch, *, divide="loss", order=None, dtype=None, layout=lambda x: x):
    """Gradients of the mean loss over microbatches, in one of the legitimate ways."""
    model = copy.deepcopy(model).to(dtype)
    xs, targets = batch
    m = len(xs)
    for k in order or range(m):
        x = xs[k].to(dtype) if dtype and xs[k].is_floating_point() else xs[k]
        loss = model(layout(x), layout(targets[k]))
        (loss / m if divide == "loss" else loss).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {n: g / m if divide == "gradient" else g for n, g in gradients.items()}


def analysed(model, batch, **how):
    with RunningError() as analysis:
        gradients = train(model, batch, **how)
    return gradients, analysis


def batch_of(m, *, tokens=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (m, 2, 3)
    target = torch.randint(0, 7, shape, generator=generator)
    if tokens:
        return torch.randint(0, 7, shape, generator=generator).unbind(), target.unbind()
    return torch.randn(*shape, 6, generator=generator).unbind(), target.unbind()


def within(analysis, mine, other):
    """The judgement itself: other engines' gradients against the analysed ones."""
    return {
        name: ratio(Array.of(g), Array.of(other[name].to(g.dtype)), Array.of(analysis.bound(g)))
        for name, g in mine.items()
    }


def worst_error(analysis, mine, exact):
    """The largest ratio of the true error of an analysed run to E."""
    ratios = []
    for name, g in mine.items():
        actual = (g.detach().double() - exact[name].detach().double()).abs()
        allowed = analysis.error(g)
        ratios.append(torch.where(actual <= allowed * 1e-300, 0.0, actual / allowed).max().item())
    return max(ratios)


# -- soundness -------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=110, deadline=None, derandomize=True, database=None)
@given(
    blocks=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=3),
    loss=st.sampled_from(["cross_entropy", "mse", "square"]),
    m=st.sampled_from([1, 2, 3, 5, 7]),
    tokens=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_legitimate_evaluation_keeps_the_bound(blocks, loss, m, tokens, seed):
    """Float64 is within E; other orders, scales and layouts in float32 are within the bound."""
    torch.manual_seed(seed)
    model, batch = Model(blocks, loss), batch_of(m, tokens=tokens, seed=seed)

    mine, analysis = analysed(model, batch, divide="loss" if seed % 2 else "gradient")
    exact = train(model, batch, dtype=torch.float64)
    assert worst_error(analysis, mine, exact) <= 1

    for how in (
        {"divide": "loss" if seed % 2 == 0 else "gradient", "order": range(m - 1, -1, -1)},
        {"divide": "loss", "layout": strided, "order": [*range(1, m), 0]},
    ):
        other = train(model, batch, **how)
        assert max(within(analysis, mine, other).values()) <= 1, how


@pytest.mark.parametrize("kind", ["layer", "batch", "batch_eval", "group", "group_last"])
def test_normalisations_of_values_far_from_zero_keep_the_bound(kind):
    """Kernels that compute x·s + t, or E[x²] − mean², lose the digits of the mean: E covers them."""
    torch.manual_seed(3)
    x = 300 + torch.randn(4, 6, 3, 3)
    x = x.contiguous(memory_format=torch.channels_last) if kind == "group_last" else x
    norm = {"layer": nn.LayerNorm((6, 3, 3)), "batch": nn.BatchNorm2d(6), "batch_eval": nn.BatchNorm2d(6)}
    module = norm.get(kind, nn.GroupNorm(2, 6))
    if kind == "batch_eval":
        module.eval()
        module.running_mean.fill_(300)
    weights = torch.randn(4, 6, 3, 3)

    def run(dtype):
        leaf = x.to(dtype, copy=True).requires_grad_()
        mine = copy.deepcopy(module).to(dtype)
        y = mine(leaf)
        (y * weights.to(dtype)).sum().backward()
        return {"y": y, "x": leaf.grad, "weight": mine.weight.grad, "bias": mine.bias.grad}

    with RunningError() as analysis:
        mine = run(torch.float32)

    assert worst_error(analysis, mine, run(torch.float64)) <= 1


def test_gradients_that_are_zero_in_exact_arithmetic_pass_by_the_bound_only():
    """A bias before a batch norm, or before a softmax over it: pure noise, millions of ulp apart."""
    x = torch.randn(5, 16, 6)
    norm, linear = nn.BatchNorm1d(6), nn.Linear(6, 6)
    query, key = nn.Linear(6, 6), nn.Linear(6, 6)

    def run(*, divide):
        for module in (norm, linear, query, key):
            module.zero_grad()
        for rows in x:
            weights = (query(rows) @ key(rows).T).softmax(-1)
            loss = norm(linear(rows)).pow(3).mean() + (weights @ rows).pow(3).mean()
            (loss / 5 if divide == "loss" else loss).backward()
        gradients = {"norm": linear.bias.grad, "softmax": key.bias.grad}
        return {name: g.clone() if divide == "loss" else g / 5 for name, g in gradients.items()}

    with RunningError() as analysis:
        mine = run(divide="loss")
    other = run(divide="gradient")

    for name, gradient in mine.items():
        expected, actual = Array.of(gradient), Array.of(other[name])
        assert compare(expected, actual).ulps > 10**4
        assert compare(expected, actual, bound=Array.of(analysis.bound(gradient))) is None
        assert float(analysis.bound(gradient).max()) < 1e-4


def test_a_bound_is_widened_where_a_branch_is_in_doubt():
    """At a value that rounding alone moved off zero, relu's gradient may be taken or not, max may tie."""
    x = torch.tensor([0.1, 1.0], requires_grad=True)
    with RunningError() as analysis:
        noise = (x + 0.2) - 0.3 * torch.tensor([1.0, 1.0])  # mathematically 0, and 0.9
        F.relu(noise).sum().backward()
    assert analysis.error(x.grad)[0] >= 1
    assert analysis.error(x.grad)[1] < 1e-5

    y = torch.tensor([0.1], requires_grad=True)
    with RunningError() as analysis:
        torch.cat([(y + 0.2) * 3, y * 3 + 0.6, y]).max(0).values.sum().backward()
        flags = (y + 0.2) * 3 > y * 3 + 0.6
        picked = torch.where(flags, y * 100, y)
    assert float(analysis.error(y.grad)) > 1
    assert float(analysis.error(picked)) > 9


# -- tightness -------------------------------------------------------------------------------------------

TIGHT = [("gelu", "gelu", "gelu"), ("layer_norm", "gelu", "layer_norm", "tanh"), ("attention", "layer_norm")]


@pytest.mark.parametrize("blocks", TIGHT, ids="-".join)
def test_faults_exceed_the_bound(blocks):
    """A relative 1e-3, a missing microbatch, a wrong divisor and a dropped contribution are rejected."""
    m = 4
    model, batch = Model(blocks, "cross_entropy"), batch_of(m)
    mine, analysis = analysed(model, batch)

    def judged(gradients):
        return within(analysis, mine, gradients)

    assert max(judged(train(model, batch, order=[3, 1, 0, 2])).values()) <= 1
    assert min(judged({n: g * m / (m - 1) for n, g in mine.items()}).values()) > 1
    assert min(judged(train(model, batch, order=[0, 1, 2])).values()) > 1
    for name, gradient in mine.items():
        if name.endswith("weight"):
            wrong = gradient.clone().flatten()
            wrong[wrong.abs().argsort()[wrong.numel() // 2]] *= 1.001
            assert judged(mine | {name: wrong.view_as(gradient)})[name] > 1, name
    xs, targets = batch
    dropped = train(model, ([xs[0], xs[1], xs[2], xs[3] * torch.tensor([1.0, 0.0]).view(2, 1, 1)], targets))
    assert judged(dropped)["head.weight"] > 1


@pytest.mark.parametrize("blocks", TIGHT, ids="-".join)
def test_an_error_of_three_times_the_bound_in_one_element_is_found_there(blocks):
    """The bound is elementwise: one element too far is that element's mismatch."""
    mine, analysis = analysed(Model(blocks, "mse"), batch_of(3))
    gradient = mine["head.weight"]
    bound = analysis.bound(gradient)
    wrong = gradient.clone()
    wrong.view(-1)[3] += 3 * bound.view(-1)[3].item()

    found = compare(Array.of(gradient), Array.of(wrong), bound=Array.of(bound))

    assert (found.differing, found.index) == (1, (0, 3))
    assert found.worst == pytest.approx(3, rel=0.2)


@pytest.mark.parametrize("blocks", TIGHT, ids="-".join)
def test_the_bound_is_within_ten_thousand_of_what_rounding_does(blocks):
    """The median ratio of E to the actual error; the certain bound alone (no samples) is far from it."""
    model, batch = Model(blocks, "mse"), batch_of(4)
    exact = train(model, batch, dtype=torch.float64)

    def typical(samples):
        with RunningError(samples=samples) as analysis:
            mine = train(model, batch)
        pairs = [(analysis.error(g), (g.double() - exact[n]).abs()) for n, g in mine.items()]
        allowed, actual = (torch.cat([pair[i].flatten() for pair in pairs]) for i in (0, 1))
        return float((allowed / actual)[actual > 0].median())

    assert typical(64) < 1e4
    assert typical(64) * 2 < typical(0)


# -- the mode itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_analysis_changes_no_bit(dtype):
    """Same gradients, buffers and random numbers with and without."""
    model = Model(["batch_norm", "attention", "gelu", "layer_norm"], "cross_entropy")
    model.blocks.append(nn.Dropout(0.3))
    batch = batch_of(3)

    def run():
        torch.manual_seed(5)
        copied = copy.deepcopy(model).to(dtype)
        for x, target in zip(*batch, strict=True):
            (copied(x.to(dtype), target) / 3).backward()
        return [
            *(p.grad for p in copied.parameters() if p.grad is not None),
            *copied.buffers(),
            torch.rand(3),
        ]

    plain = run()
    with RunningError():
        under = run()

    assert [Array.of(x) for x in under] == [Array.of(x) for x in plain]


def test_leaves_are_exact_and_what_is_computed_is_not():
    """E = 0 before any operation; views and copies of a leaf keep that, a product does not."""
    x = torch.randn(4, 4)
    with RunningError() as analysis:
        copied, product = x.t().contiguous(), x * x

    assert float(analysis.bound(x).max()) == 0
    assert float(analysis.error(copied).max()) == 0
    assert torch.allclose(analysis.error(product), (x * x).abs().double() * 2**-24, rtol=1e-3)


def test_views_and_in_place_operations_share_one_shadow():
    """A write through a view shows in its base, and vice versa; zero_ makes a tensor exact."""
    x, y = torch.randn(4, 4), torch.randn(4)
    with RunningError() as analysis:
        base = x.clone()
        base.t()[1].mul_(y)  # writes column 1
        changed = analysis.error(base).clone()
        row = base.view(2, 8).select(0, 0).detach()[:4]
        seen = analysis.error(row).clone()
        base[:, 1].zero_()

    assert changed[:, 1].gt(0).all()
    assert changed[:, [0, 2, 3]].eq(0).all()
    assert torch.equal(seen, changed[0])
    assert float(analysis.error(base).max()) == 0


def test_an_in_place_operation_may_read_the_memory_it_writes():
    """An argument that aliases the result does not make the operation a view."""
    x = torch.randn(4, 4)
    with RunningError() as analysis:
        base = x.clone()
        base[:, :2].add_(base[:, 2:])

    assert bool(analysis.error(base[:, :2]).gt(0).all())


def test_accumulated_gradients_grow_with_every_contribution():
    """Stolen, aliased and added gradients are followed: each microbatch adds to the bound."""
    w, x = torch.randn(3, requires_grad=True), torch.randn(5, 3)
    bounds, analysis = [], RunningError()
    for k in range(5):
        with analysis:
            (w * x[k] / 3).sum().backward()
        bounds.append(float(analysis.bound(w.grad).sum()))
        assert analysis.bound(w.grad.detach()).equal(analysis.bound(w.grad))

    assert bounds == sorted(bounds)
    assert bounds[4] > 2 * bounds[0] > 0


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]], ids=str)
def test_the_bound_holds_for_every_order_whichever_was_analysed(order):
    """A large term added first costs a rounding per later addition, though the analysed run added it last."""
    terms = torch.tensor([1e-4, 3e-4, 7e-4, 1.0])
    with RunningError() as analysis:
        total = torch.zeros(())
        for k in order:
            total = total + terms[k]

    # (n−1)·u·Σ|x|, of which the zero at the start is one term.
    assert float(analysis.error(total)) >= 0.99 * 3 * 2**-24 * float(terms.sum())


def test_shadows_die_with_their_tensors():
    """Memory is that of what is alive."""
    x = torch.randn(8, 8)
    with RunningError() as analysis:
        for _ in range(600):
            y = x @ x
        assert analysis.num_tracked == 1
    del y
    gc.collect()

    assert analysis.num_tracked == 0


def test_complex_numbers_have_the_errors_of_their_parts():
    """They are made of real parts and taken apart again, forward and backward; nothing else is done with them."""
    x = torch.randn(4, 3, dtype=torch.float32)

    def gradient_and_bound(combine):
        weight = torch.full((3,), 0.7, requires_grad=True)
        with RunningError() as analysis:
            y = x * weight
            combine(y * 0.3, y * y).square().sum().backward()
        return weight.grad, analysis.bound(weight.grad)

    def with_complex(a, b):
        parts = torch.view_as_real(torch.complex(a, b))
        return parts[..., 0] + parts[..., 1]

    (right, due), (mine, allowed) = gradient_and_bound(torch.add), gradient_and_bound(with_complex)

    assert torch.allclose(mine, right)
    assert bool((allowed > 0).all())
    assert torch.allclose(allowed, due, rtol=0.5)


def test_an_operation_without_a_rule_is_refused_by_name():
    """Silence would be a bound of 0."""
    with RunningError(), pytest.raises(UnknownOperation, match=r"aten\.linalg_inv_ex"):
        torch.linalg.inv(torch.eye(3))
    with RunningError(), pytest.raises(UnknownOperation, match="complex"):
        torch.randn(3, dtype=torch.complex64) * 2


def test_an_inexact_value_must_not_leave_its_tensor():
    """item() would carry a value on without its error; an exact one may leave."""
    x = torch.tensor(0.3)
    with RunningError():
        assert x.item() == pytest.approx(0.3)
        with pytest.raises(UnknownOperation, match="out of its tensor"):
            (x * x).item()


def test_programs_with_clipping_and_optimizers_are_followed():
    """Parameters after optimizer steps have bounds that float64 keeps."""

    def run(dtype, make):
        torch.manual_seed(1)
        model = nn.Linear(4, 4).to(dtype)
        optimizer = make(model.parameters())
        x = torch.randn(6, 4, dtype=torch.float32).to(dtype)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model(x).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        return list(model.parameters())

    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
        lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),  # the default on GPUs
        lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True, amsgrad=True),
    ):
        with RunningError() as analysis:
            mine = run(torch.float32, make)
        for p, exact in zip(mine, run(torch.float64, make), strict=True):
            allowed = analysis.error(p)
            assert bool(((p.double() - exact).abs() <= allowed).all())
            assert float(allowed.max()) < 1e-2


_PARTS = [torch.tensor([0.1, -0.7]), torch.tensor([[0.3]])]
_OTHERS = [torch.tensor([0.9, 0.2]), torch.tensor([[-0.4]])]
_WEIGHTS = [torch.tensor([0.25, 0.75]), torch.tensor([[0.5]])]


@pytest.mark.parametrize(
    ("several", "one"),
    [
        (lambda a: torch._foreach_lerp(a, _OTHERS, 0.3), lambda a, k: torch.lerp(a, _OTHERS[k], 0.3)),
        (
            lambda a: torch._foreach_lerp(a, _OTHERS, _WEIGHTS),
            lambda a, k: torch.lerp(a, _OTHERS[k], _WEIGHTS[k]),
        ),
        (
            lambda a: torch._foreach_addcdiv(a, _OTHERS, _WEIGHTS, [2.0, 3.0]),
            lambda a, k: torch.addcdiv(a, _OTHERS[k], _WEIGHTS[k], value=2.0 + k),
        ),
        (
            lambda a: torch._foreach_addcmul(a, _OTHERS, _WEIGHTS, torch.tensor([2.0, 3.0])),
            lambda a, k: torch.addcmul(a, _OTHERS[k], _WEIGHTS[k], value=2.0 + k),
        ),
        (lambda a: torch._foreach_mul(a, [2.0, 3.0]), lambda a, k: a * (2.0 + k)),
        (
            lambda a: torch._foreach_add(a, _OTHERS, alpha=0.1),
            lambda a, k: torch.add(a, _OTHERS[k], alpha=0.1),
        ),
        (lambda a: torch._foreach_clamp_min(a, 0.0), lambda a, k: a.clamp_min(0.0)),
        (lambda a: torch._foreach_clamp_max(a, [0.2, 0.1]), lambda a, k: a.clamp_max((0.2, 0.1)[k])),
        (lambda a: torch._foreach_sqrt(torch._foreach_abs(a)), lambda a, k: a.abs().sqrt()),
        (torch._foreach_norm, lambda a, k: torch.linalg.vector_norm(a)),
    ],
    ids=[
        "lerp",
        "lerp-weights",
        "addcdiv",
        "addcmul",
        "mul",
        "add",
        "clamp-min",
        "clamp-max",
        "sqrt",
        "norm",
    ],
)
def test_an_operation_on_several_tensors_is_the_same_on_each(several, one):
    """Optimizers use these on GPUs; their arguments have other names."""
    with RunningError() as analysis:
        inexact = [part / 3.0 for part in _PARTS]
        found = several([value.clone() for value in inexact])
        expected = [one(value, k) for k, value in enumerate(inexact)]
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(analysis.error(mine), analysis.error(theirs))
        assert bool((analysis.error(mine) > 0).any())


def test_the_samples_are_the_same_every_time():
    """The analysis is deterministic and leaves the global generator alone."""
    model, batch = Model(["gelu"], "mse"), batch_of(2)
    state = torch.get_rng_state()
    bounds = []
    for _ in range(2):
        mine, analysis = analysed(model, batch)
        bounds.append([analysis.bound(g) for g in mine.values()])

    assert all(torch.equal(a, b) for a, b in zip(*bounds, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


# -- what is followed, and what is refused ----------------------------------------------------------------


def test_memory_that_is_viewed_as_another_type_is_exact_or_refused():
    """Bits of an inexact number say nothing about its error."""
    x = torch.tensor([1.0, 3.0])
    with RunningError() as analysis:
        exact = x.clone()
        assert float(analysis.error(exact.view(torch.int32)).max()) == 0
        inexact = x / 3
        with pytest.raises(UnknownOperation, match=r"viewed with another item size, as torch\.float64"):
            analysis.error(inexact.view(torch.float64))
        copied = (x + 0).zero_()
        assert float(analysis.error(copied.view(torch.float64)).max()) == 0


def test_positions_in_doubt_leave_nothing_known_of_what_is_there():
    """The largest of two equal values may be either, so what is gathered from there may be anything."""
    x = torch.tensor([0.1, 0.3, 5.0])
    with RunningError() as analysis:
        rivals = torch.stack([x[0] * 3, x[1]])  # nearly equal
        chosen = rivals.max(0).indices.reshape(1)
        certain = torch.stack([x[0] * 3, x[2]]).max(0).indices.reshape(1)
        gathered = [x.gather(0, index) for index in (chosen, certain)]
        picked = [x[index] for index in (chosen, certain)]
        looked_up = torch.nn.functional.embedding(chosen, x[:, None])

    assert [float(analysis.error(one)) for one in gathered] == [math.inf, 0]
    assert [float(analysis.error(one)) for one in picked] == [math.inf, 0]
    assert float(analysis.error(looked_up)) == math.inf


def test_random_numbers_are_exact_and_their_parameters_must_be():
    x = torch.rand(4) / 3
    with RunningError() as analysis:
        inexact = x * x
        assert bool((analysis.error(inexact) > 0).all())
        inexact.uniform_()
        assert float(analysis.error(inexact).max()) == 0
        drawn = torch.bernoulli(x)
        assert float(analysis.error(drawn).max()) == 0
        with pytest.raises(UnknownOperation, match="samples with an inexact parameter"):
            torch.bernoulli(x * x)
        with pytest.raises(UnknownOperation, match="samples with an inexact parameter"):
            torch.normal(x * x, 1.0)


def test_a_tensor_that_nothing_was_computed_into_is_exact_and_of_any_shape():
    x = torch.randn(2, 3)
    with RunningError() as analysis:
        assert analysis.bound(x).shape == analysis.error(x).shape == (2, 3)
        product = x * x
    # two evaluations, each within its error, and a factor that is applied at another place
    assert bool((analysis.bound(product) > 2 * analysis.error(product)).all())
    assert bool((analysis.bound(product) < 6 * analysis.error(product)).all())


def test_what_is_looked_at_aside_is_no_part_of_the_computation():
    x = torch.randn(3)
    with RunningError() as analysis:
        y = x * x
        with analysis.aside():
            seen = y / 3
            assert torch.linalg.inv(torch.eye(3)).shape == (3, 3)  # which has no rule
            assert (y * 2).max().item() > 0  # and leaves its tensor
        z = y / 3

    assert float(analysis.error(seen).max()) == 0
    assert bool((analysis.error(z) > 0).all())


def test_one_rounding_is_claimed_in_its_region_only_also_when_regions_nest_or_fail():
    numbers = torch.randn(3, 5).bfloat16()

    def certain(analysis):
        return not analysis.error(numbers[0] + numbers[1] + numbers[2]).any()

    with RunningError() as analysis:
        assert not certain(analysis)
        with analysis.rounding_once():
            with analysis.rounding_once():
                pass
            first = numbers[0] + numbers[1]
            assert not analysis.error(first).any()
        with pytest.raises(ValueError, match="on purpose"), analysis.rounding_once():
            raise ValueError("on purpose")
        assert bool(analysis.error(numbers[0] + numbers[1]).any())


def test_a_part_of_a_tensor_keeps_its_error_when_another_part_is_written():
    x = torch.rand(4) + 1
    with RunningError(samples=0) as analysis:
        base = x / 3
        before = analysis.error(base).clone()
        base[:2] = 0.0
        after = analysis.error(base)
        base[:] = 0.0

    assert after[:2].tolist() == [0, 0]
    assert torch.equal(after[2:], before[2:])
    assert analysis.error(base).tolist() == [0] * 4


def test_a_storage_that_grows_for_a_result_has_the_errors_of_the_result():
    x, more = torch.rand(3) + 1, torch.rand(5) + 1
    with RunningError(samples=0) as analysis:
        y = x / 3
        y.resize_(0)
        torch.mul(more, more, out=y)
        product = more * more

    assert torch.equal(analysis.error(y), analysis.error(product))


def test_several_outputs_have_errors_of_their_own():
    x = torch.rand(4, 6) + 1
    with RunningError(samples=0) as analysis:
        y = x / 3
        variance, mean = torch.var_mean(y, 1)
        first, second = y.split([2, 4], 1)
        values, indices = y.max(1)
        alone = y.mean(1), y.var(1), y.max(1).values

    for found, expected in zip((mean, variance, values), alone, strict=True):
        assert torch.equal(analysis.error(found), analysis.error(expected))
    assert not analysis.error(indices).any()
    assert torch.equal(torch.cat([analysis.error(first), analysis.error(second)], 1), analysis.error(y))


def test_an_argument_may_be_given_by_name_or_left_out():
    x = torch.randn(3, 3)
    with RunningError(samples=0) as analysis:
        y = x / 3
        plain = analysis.error(torch.add(y, x))
        for found in (torch.add(y, other=x), torch.add(input=y, other=x, alpha=1), torch.add(y, x, alpha=1)):
            assert torch.equal(analysis.error(found), plain)
        assert bool((analysis.error(torch.add(y, x, alpha=3)) > plain).all())
