"""No operation has a larger error than its rule says."""

import pytest
import torch
import torch.nn.functional as F

from pipeconform.bounds.running_error import RunningError

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
