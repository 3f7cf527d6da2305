# ruff: noqa
# mypy: ignore-errors
"""The blocks of stages as their user would write them; `tests/export/plain` compares them with those of cases."""

from collections import Counter

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(x)))


class Attention(nn.Module):
    def __init__(self, width, sequence_dim=1):
        super().__init__()
        self.sequence_dim = sequence_dim
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        y = x if self.sequence_dim == 1 else x.transpose(0, 1)
        scores = self.query(y) @ self.key(y).transpose(-1, -2) / y.shape[-1] ** 0.5
        mixed = scores.softmax(-1) @ self.value(y)
        return x + (mixed if self.sequence_dim == 1 else mixed.transpose(0, 1))


class BatchNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] == 1:  # one row alone cannot be normalised
            rows = torch.cat([rows, rows * 0.5 + 1.0])
        return self.norm(rows)[: x.numel() // x.shape[-1]].reshape(x.shape)


class Dropout(nn.Module):
    def forward(self, x):
        return x * (torch.rand(x.shape) < 0.5) * 2.0 if self.training else x


class Shared(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(torch.tanh(self.linear(x)))


class Unused(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x


class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.always, self.sometimes = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        y = self.always(x)
        return y + self.sometimes(x) if bool(x.flatten()[:1].sum() > 0) else y


class Inplace(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return functional.leaky_relu_(self.linear(x).mul_(1.25).add_(0.5), 0.5)


class Transposed(nn.Module):
    def forward(self, x):
        return x.transpose(0, -1).contiguous().transpose(0, -1)


class Expanded(nn.Module):
    def forward(self, x):
        return x.mean(-1, keepdim=True).expand(x.shape)


class Activation(nn.Module):
    def __init__(self, width, kind):
        super().__init__()
        self.linear, self.kind = nn.Linear(width, width), kind

    def forward(self, x):
        y = self.linear(x)
        return (3.0 * y).softmax(-1) if self.kind == "softmax" else getattr(y, self.kind)()


class Hooked(nn.Module):
    """A linear map with hooks that count their calls."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires = Counter()
        self.linear.register_forward_pre_hook(self.before)
        self.linear.register_forward_hook(self.after)

    def before(self, module, args):
        self.fires["pre_forward"] += 1
        return (args[0] * 0.75, *args[1:])

    def after(self, module, args, output):
        self.fires["forward"] += 1
        if output.requires_grad:
            output.register_hook(self.gradient)
        return output * 1.5

    def gradient(self, gradient):
        self.fires["gradient"] += 1
        return gradient * 1.25

    def forward(self, x):
        return self.linear(x)


class AddedLoss(torch.autograd.Function):
    """Returns its first input; in the backward, its second input, a loss, gets the gradient 1."""

    @staticmethod
    def forward(ctx, x, loss):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient.new_ones(())


class Auxiliary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = self.linear(x)
        return AddedLoss.apply(y, (y * y).mean())


class Checkpointed(nn.Module):
    def __init__(self, *inner, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant
        self.inner = nn.Sequential(*inner)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


class FromState(torch.autograd.Function):
    """Multiplies by what its module stored for one forward, in both directions."""

    @staticmethod
    def forward(ctx, x, module, call):
        ctx.module, ctx.call = module, call
        return x * module.kept[call]

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.module.kept[ctx.call], None, None


class Stateful(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.kept = []

    def forward(self, x):
        y = self.linear(x)
        self.kept.append(0.5 + y.detach().tanh().abs())
        return FromState.apply(y, self, len(self.kept) - 1)


class Tied(nn.Module):
    """Two linear maps that share their weight or their bias."""

    def __init__(self, width, what):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        setattr(self.second, what, getattr(self.first, what))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Pieces(nn.Module):
    """A node with several outputs, each used differently."""

    def __init__(self, width, how):
        super().__init__()
        self.wide, self.how = nn.Linear(width, 2 * width), how

    def forward(self, x):
        both = self.wide(x)
        if self.how == "unbind":
            a, b = both.unflatten(-1, (2, x.shape[-1])).unbind(-2)
        else:
            a, b = both.chunk(2, dim=-1) if self.how == "chunk" else both.split(x.shape[-1], dim=-1)
        return a * torch.tanh(b)


class Common(nn.Module):
    """Three parameters; the third is used together with each of the others."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.third = (nn.Parameter(torch.empty(width)) for _ in range(3))

    def forward(self, x):
        return torch.tanh((x + (self.first + self.third)) * (x + (self.second + self.third)))


class Offsets(nn.Module):
    """Two parameters of exactly the shape of what they are added to."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.first, self.second = (nn.Parameter(torch.empty(width)) for _ in range(2))

    def forward(self, x):
        pooled = torch.tanh(self.linear(x)).flatten(0, -2).mean(0)
        return x + (pooled + self.first + self.second)


class Joined(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.learned, self.linear = nn.Parameter(torch.empty(width)), nn.Linear(3 * width, width)

    def forward(self, x):
        wide = torch.cat([x, self.learned.expand_as(x), torch.ones_like(x)], dim=-1)
        return torch.tanh(self.linear(wide))


class Accumulating(nn.Module):
    """A linear map whose parameters have post-accumulate-grad hooks, which count their calls."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires = Counter()
        for parameter in self.linear.parameters():
            parameter.register_post_accumulate_grad_hook(self.added)

    def added(self, parameter):
        self.fires["post_accumulate_grad"] += 1

    def forward(self, x):
        return self.linear(x)


class InputHooked(nn.Module):
    """A linear map with a tensor hook on its input, which counts its calls."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires = Counter()

    def gradient(self, gradient):
        self.fires["input"] += 1
        return gradient * 1.25

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(self.gradient)
        return self.linear(x)


class GradientHooked(nn.Module):
    """A linear map with hooks on its parameters or on its backward, which count their calls."""

    def __init__(self, width, on):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires = Counter()
        if on == "module":
            self.linear.register_full_backward_pre_hook(self.before)
            self.linear.register_full_backward_hook(self.after)
        else:
            for parameter in self.linear.parameters():
                parameter.register_hook(self.gradient)

    def gradient(self, gradient):
        self.fires["parameter"] += 1
        return gradient * 1.25

    def before(self, module, of_output):
        self.fires["pre_backward"] += 1
        return (of_output[0] * 1.5,)

    def after(self, module, of_input, of_output):
        self.fires["backward"] += 1
        return None if of_input[0] is None else (of_input[0] * 1.25,)

    def forward(self, x):
        return self.linear(x)


class InputGradientOnly(torch.autograd.Function):
    """A linear map that records the factors of its weight's gradient instead of computing it."""

    @staticmethod
    def forward(ctx, x, weight, pending):
        ctx.save_for_backward(x, weight)
        ctx.pending = pending
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        ctx.pending.append((x.detach(), gradient))
        return gradient @ weight, None, None


class Deferred(nn.Module):
    """A linear map whose weight gradient is computed by the function that `build` returns."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        self.pending, self.fires = [], Counter()

    def forward(self, x):
        return InputGradientOnly.apply(x, self.weight, self.pending)

    def build(self):
        self.fires["deferred_weight_builder"] += 1
        taken = list(self.pending)
        self.fires["deferred_weight_entry"] += len(taken)
        self.pending.clear()

        def run():
            self.fires["deferred_weight_function"] += 1
            for x, gradient in taken:
                found = gradient.flatten(0, -2).t() @ x.flatten(0, -2)
                self.weight.grad = found if self.weight.grad is None else self.weight.grad + found

        return run


def deferred_weights(module):
    """What PipelineStage(dw_builder=…) takes: it returns a function that adds the weights' gradients."""
    layers = [part for part in module.modules() if isinstance(part, Deferred)]

    def build():
        functions = [layer.build() for layer in layers]
        return lambda: [function() for function in functions]

    return build if layers else None
