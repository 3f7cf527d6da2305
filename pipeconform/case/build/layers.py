"""The torch modules of the blocks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeconform.case import blocks
from pipeconform.case.build.decoder import DecoderLayer
from pipeconform.case.build.exact import GainLayer
from pipeconform.case.build.graph_layers import graph_layer
from pipeconform.case.build.hook_layers import GradientHookedLayer, InputHookedLayer
from pipeconform.case.build.keeping_layer import KeepingLayer
from pipeconform.case.build.overflow_layer import OverflowingLayer
from pipeconform.case.build.synced_norm import SyncedNormLayer
from pipeconform.case.case import Model

__all__ = ["VOCABULARY", "DropoutLayer", "module_of"]

VOCABULARY = 11


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.gelu(self.up(x)))
        return x + y


class _Attention(nn.Module):
    def __init__(self, width: int, sequence_dim: int) -> None:
        super().__init__()
        self.sequence_dim = sequence_dim
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.sequence_dim == 1 else x.transpose(0, 1)
        scores = self.query(y) @ self.key(y).transpose(-1, -2) / y.shape[-1] ** 0.5
        mixed: Tensor = scores.softmax(-1) @ self.value(y)
        return x + (mixed if self.sequence_dim == 1 else mixed.transpose(0, 1))


class _BatchNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        # a microbatch of one row cannot be normalised in training mode; repeat it with an offset
        rows = x.reshape(-1, x.shape[-1])
        if rows.shape[0] == 1:
            rows = torch.cat([rows, rows * 0.5 + 1.0])
        normed: Tensor = self.norm(rows)
        return normed[: x.numel() // x.shape[-1]].reshape(x.shape)


class _Counting(nn.Module):
    count: Tensor
    mask: Tensor | None

    def __init__(self, width: int, *, expanded: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.ones(1, dtype=torch.bool).expand(2, width) if expanded else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count = self.count + 1  # another tensor, and not the same one with another value
        y: Tensor = self.linear(x)
        return y if self.mask is None else y * self.mask[0]


class DropoutLayer(nn.Module):
    """Dropout with a mask from the process's random state, or with the mask in `replay`."""

    replay: Tensor | None = None
    drawn: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Drop half of the values in training mode, none otherwise."""
        if not self.training:
            return x
        mask = self.replay
        if mask is None:
            mask = torch.rand(x.shape, device=x.device) < 0.5
        self.drawn = mask
        return x * mask * 2.0


class _Shared(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(torch.tanh(self.linear(x)))
        return y


class _Unused(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x


class _Branch(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.always(x)
        return y + self.sometimes(x) if bool(x.flatten()[:1].sum() > 0) else y


class _Bypass(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if bool(x.flatten()[:1].sum() > 0) else x * 0.75


class _Rescaled(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        # parts of one batch share a version: of one that autograd keeps, no other could be changed
        result: Tensor = self.linear(x.mul_(0.5) * 1.0)
        return result


class _Inplace(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return functional.leaky_relu_(y.mul_(1.25).add_(0.5), 0.5)


class _Activation(nn.Module):
    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(width, width), kind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        match self.kind:
            case "relu":
                return y.relu()
            case "sigmoid":
                return y.sigmoid()
            case "softmax":
                return (3.0 * y).softmax(-1)  # sharp enough for gradients far above rounding
        return y.tanh()


class _Layout(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "transposed":
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        return x.mean(-1, keepdim=True).expand(x.shape)


class _Hooked(nn.Module):
    """A linear map whose hooks change values and count their calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.fires: Counter[str] = Counter()
        self.linear.register_forward_pre_hook(self._before)
        self.linear.register_forward_hook(self._after)

    def _before(self, _module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.fires["pre_forward"] += 1
        return (args[0] * 0.75, *args[1:])

    def _after(self, _module: nn.Module, _args: object, output: Tensor) -> Tensor:
        self.fires["forward"] += 1
        if output.requires_grad:
            output.register_hook(self._gradient)  # type: ignore[no-untyped-call]
        return output * 1.5

    def _gradient(self, gradient: Tensor) -> Tensor:
        self.fires["gradient"] += 1
        return gradient * 1.25

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y


class _AddedLoss(torch.autograd.Function):
    """Returns its first input; in the backward, its second input, a loss, gets the gradient 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0].new_ones(())


class _Auxiliary(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        found: Tensor = _AddedLoss.apply(y, (y * y).mean())  # type: ignore[no-untyped-call]
        return found


class _Checkpointed(nn.Module):
    def __init__(self, width: int, *, reentrant: bool, dropout: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.inner = nn.Sequential(_Mlp(width), *([DropoutLayer()] if dropout else []))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.inner, x, use_reentrant=self.reentrant)
        return found


def _compiled(width: int, how: str) -> nn.Module:
    # a process runs many cases, and dynamo stops compiling code that it has compiled too often
    torch._dynamo.reset()
    module = _Mlp(width)
    if how == "in_place":
        module.compile(backend="aot_eager")
        return module
    return torch.compile(module, backend="aot_eager")  # type: ignore[return-value]  # an OptimizedModule


_REMEMBERED = 64  # forwards, more than are ever in flight


class _FromState(torch.autograd.Function):
    """Multiplies by what its module stored for one forward, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: _Stateful, call: int) -> Tensor:
        ctx.module, ctx.call = module, call
        return x * module.kept[call]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] * ctx.module.kept[ctx.call], None, None


class _Stateful(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.calls = 0
        self.kept: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        call, self.calls = self.calls, self.calls + 1
        self.kept[call] = 0.5 + y.detach().tanh().abs()
        self.kept.pop(call - _REMEMBERED, None)
        found: Tensor = _FromState.apply(y, self, call)  # type: ignore[no-untyped-call]
        return found


class _Tied(nn.Module):
    def __init__(self, width: int, what: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        setattr(self.second, what, getattr(self.first, what))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x)))
        return y


def module_of(block: blocks.Block, model: Model) -> nn.Module:
    """A new module for a block; the stage sets its parameters later."""
    width = model.width
    match block:
        case blocks.Linear(bias=bias):
            return nn.Linear(width, width, bias=bias)
        case blocks.Mlp():
            return _Mlp(width)
        case blocks.Norm():
            return nn.LayerNorm(width)
        case blocks.Attention():
            return _Attention(width, sequence_dim=1 - model.batch_dim)
        case blocks.Decoder(kv_heads=kv_heads):
            return DecoderLayer(
                width, kv_heads=kv_heads, sequence=model.sequence, sequence_dim=1 - model.batch_dim
            )
        case blocks.Embedding():
            return nn.Embedding(VOCABULARY, width)
        case blocks.Head():
            return nn.Linear(width, model.classes)
        case blocks.BatchNorm():
            return _BatchNorm(width)
        case blocks.SyncedNorm():
            return SyncedNormLayer(width)
        case blocks.Dropout():
            return DropoutLayer()
        case blocks.Shared():
            return _Shared(width)
        case blocks.Unused():
            return _Unused(width)
        case blocks.Branch():
            return _Branch(width)
        case blocks.Bypass():
            return _Bypass(width)
        case blocks.Counting(expanded=expanded):
            return _Counting(width, expanded=expanded)
        case blocks.Keeping():
            return KeepingLayer(width)
        case blocks.Rescaled():
            return _Rescaled(width)
        case blocks.Inplace():
            return _Inplace(width)
        case blocks.Activation(kind=kind):
            return _Activation(width, kind)
        case blocks.Hooked():
            return _Hooked(width)
        case blocks.InputHooked(together=together):
            return InputHookedLayer(width, together=together)
        case blocks.GradientHooked(on=on):
            return GradientHookedLayer(width, on)
        case blocks.Overflowing():
            return OverflowingLayer(width)
        case blocks.Gain():
            return GainLayer(width)
        case blocks.Layout(kind=kind):
            return _Layout(kind)
        case blocks.Auxiliary():
            return _Auxiliary(width)
        case blocks.Checkpointed(reentrant=reentrant, dropout=dropout):
            return _Checkpointed(width, reentrant=reentrant, dropout=dropout)
        case blocks.Compiled(how=how):
            return _compiled(width, how)
        case blocks.Stateful():
            return _Stateful(width)
        case blocks.Tied(what=what):
            return _Tied(width, what)
    return graph_layer(block, width)
