"""Small models, one per way in which a stage can be awkward; plain torch, nothing of pipeconform's cases."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 4


class Scale(torch.autograd.Function):
    """A product with a parameter, written in Python, with two outputs of which one is often unused."""

    @staticmethod
    def forward(ctx, x, weight, power):
        ctx.save_for_backward(x, weight)
        return x * weight, x + weight

    @staticmethod
    def backward(ctx, first, second):
        x, weight = ctx.saved_tensors
        return first * weight + second, (first * x + second).sum(0), None


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(x)))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(self.a(x))


class SharedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.a(torch.sin(self.a(x)))


class PartFrozen(Plain):
    def __init__(self):
        super().__init__()
        self.b.requires_grad_(False)


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.sometimes = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.a(x)
        return y + self.sometimes(x) if x.flatten()[0] > 0 else y


class Pieces(nn.Module):
    """Nodes with several outputs: chunk, unbind, split; views and a transposed result."""

    def __init__(self):
        super().__init__()
        self.wide, self.bias = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        first, second, _ = self.wide(x).chunk(3, dim=-1)
        halves = torch.stack([first, second + self.bias]).unbind(0)
        left, right = (halves[0] * halves[1]).split([1, WIDTH - 1], dim=-1)
        return torch.cat([left.exp(), right], dim=-1).t().contiguous().t()


class InPlace(nn.Module):
    """Changes its input in place, then a view of what it computed."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x * 1.0 if x.is_leaf else x.mul_(1.5)
        y = self.a(x).mul_(1.25)
        y[:, 0].add_(0.5)
        return y


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.a = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return Scale.apply(self.a(x), self.weight, 2)[0]


class Hooked(nn.Module):
    """A tensor hook in the middle of the path that changes the gradient and counts."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fires = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), 0

    def _gradient(self, gradient):
        self.fires += 1
        return gradient * 1.25

    def forward(self, x):
        y = self.a(x)
        if y.requires_grad:
            y.register_hook(self._gradient)
        return self.b(y)


class Several(nn.Module):
    """Hands on a float, an integer, a mask, a float without gradient and a stream; uses all of them."""

    def __init__(self, last):
        super().__init__()
        self.a, self.last = nn.Linear(WIDTH, WIDTH), last

    def forward(self, x, positions=None, mask=None, scale=None, stream=None):
        if positions is None:
            positions = torch.arange(x.shape[0]).unsqueeze(-1).expand(-1, 3)
            mask, scale, stream = x[:, 0] > 0, torch.full((x.shape[0],), 0.5, dtype=x.dtype), x * 2
        y = torch.where(mask.unsqueeze(-1), self.a(x), x) * scale.unsqueeze(-1) + positions.sum(
            -1, keepdim=True
        )
        y = y + stream
        return y if self.last else [y, positions, mask, scale, stream.t().contiguous().t()]


class Deaf(nn.Module):
    """Ignores the second of its inputs, and gives an output whose graph ends nowhere."""

    def __init__(self, first, last):
        super().__init__()
        self.a, self.first, self.last = nn.Linear(WIDTH, WIDTH), first, last

    def forward(self, x, ignored=None):
        y = self.a(x)
        return y if self.last else (y, y.exp())


class Detached(nn.Module):
    """Its output needs no gradient: stages before it get none."""

    def __init__(self, cut):
        super().__init__()
        self.a, self.cut = nn.Linear(WIDTH, WIDTH), cut

    def forward(self, x):
        y = self.a(x)
        return y.detach() if self.cut else y


class WithGain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, *, gain, power):
        return self.a(x) * gain.unsqueeze(-1) ** power


def frozen(module: nn.Module, *, when: bool) -> nn.Module:
    return module.requires_grad_(not when)


MODELS = {
    "plain": lambda s, n: Plain(),
    "normed": lambda s, n: Normed(),
    "shared": lambda s, n: SharedTwice(),
    "unused": lambda s, n: Unused(),
    "pieces": lambda s, n: Pieces(),
    "in_place": lambda s, n: InPlace(),
    "custom": lambda s, n: Custom(),
    "hooked": lambda s, n: Hooked(),
    "several": lambda s, n: Several(s == n - 1),
    "deaf": lambda s, n: Deaf(s == 0, s == n - 1),
    "detached": lambda s, n: Detached(s == n // 2 and n > 1),
    "gain": lambda s, n: WithGain(),
    "frozen_part": lambda s, n: PartFrozen(),
    "frozen_first": lambda s, n: frozen(Plain(), when=s == 0),
    "frozen_middle": lambda s, n: frozen(Plain(), when=0 < s < n - 1),
    "frozen_last": lambda s, n: frozen(Plain(), when=s == n - 1),
}
"""Name to a builder of stage s of n."""


def build_stage(name: str, stage: int, num_stages: int) -> nn.Module:
    """The same module wherever it is built; the process's random state does not move."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + stage)
        return MODELS[name](stage, num_stages).double()


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
