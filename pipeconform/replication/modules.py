"""The modules, batches and losses of wrapper cases; the ranks and the oracle build equal ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeconform.case.modules import seed_of
from pipeconform.replication.case import Form, WrapperCase

__all__ = ["WIDTH", "Pair", "batch_of", "build", "loss_of", "skeleton_of", "tensors_in"]

WIDTH, _BATCH = 4, 3


@dataclasses.dataclass
class Pair:
    """An output that is a dataclass."""

    first: Any
    rest: Any


def build(case: WrapperCase, *, rank: int) -> nn.Module:
    """The replica of a rank, with its initial values.

    Shapes: input ``[3, 4]`` float64, output ``[3, 3]``; ``conv`` takes ``[3, 2, 4, 4]``, ``sparse`` int64 ``[3, 2]``.
    """
    values = seed_of(case.seed, "module", rank if case.own_values else 0)
    generator = torch.Generator().manual_seed(values)
    module = _Module(case, wide=case.own_shape and rank == case.ranks - 1)
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * 0.5)
        if case.module == "ignored":
            module.get_parameter("own").fill_(rank + 1.0)
            module.get_buffer("own_seen").fill_(rank + 1.0)
        if case.own_values and case.module in ("normed", "assigned"):
            for buffer in module.buffers():
                buffer.add_(rank)
    return module


class _Module(nn.Module):
    own_seen: Tensor
    seen: Tensor

    def __init__(self, case: WrapperCase, *, wide: bool) -> None:
        super().__init__()
        self.kind, self.form = case.module, case.form
        self.enter = nn.Linear(WIDTH, WIDTH + wide, dtype=torch.float64)
        middle = WIDTH + wide
        match case.module:
            case "dtypes":
                self.single = nn.Linear(middle, WIDTH, dtype=torch.float32)
                self.small = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
                middle = WIDTH
            case "shared":
                self.again = nn.Linear(middle, middle, dtype=torch.float64)
                if not wide:
                    self.again.weight = self.enter.weight
            case "frozen":
                self.kept = nn.Linear(middle, middle, dtype=torch.float64)
                self.kept.weight.requires_grad_(False)
            case "ignored":
                self.own = nn.Parameter(torch.ones(middle, dtype=torch.float64))
                self.register_buffer("own_seen", torch.zeros(1, dtype=torch.float64))
            case "towers":
                self.towers = nn.ModuleDict(
                    {name: nn.Linear(WIDTH, middle, dtype=torch.float64) for name in "ab"}
                )
            case "normed":
                self.norm = nn.BatchNorm1d(middle, dtype=torch.float64)
            case "assigned":
                self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
            case "conv":
                conv = nn.Conv2d(2, WIDTH, 3, dtype=torch.float64)
                self.conv = conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            case "sparse":
                self.table = nn.Embedding(5, WIDTH, sparse=True, dtype=torch.float64)
        self.leave = nn.Linear(middle, 3, dtype=torch.float64)

    def forward(self, x: Tensor, use: str = "ab") -> Any:
        match self.kind:
            case "conv":
                x = self.conv(x).mean((2, 3))
            case "sparse":
                x = self.table(x).mean(1)
        if self.kind in ("checkpoint", "reentrant"):
            x = x.detach().requires_grad_()
            hidden = checkpoint(self.enter, x, use_reentrant=self.kind == "reentrant")
        elif self.kind == "towers":
            hidden = self.enter(x)
            for name in use:
                hidden = hidden + self.towers[name](x)
        else:
            hidden = self.enter(x)
        hidden = torch.tanh(hidden)
        match self.kind:
            case "dtypes":
                hidden = self.small(torch.tanh(self.single(hidden.float())).bfloat16()).double()
            case "shared":
                hidden = self.again(hidden)
            case "frozen":
                hidden = self.kept(hidden)
            case "ignored":
                self.own_seen += 1
                hidden = hidden * self.own
            case "normed":
                hidden = self.norm(hidden)
            case "assigned":
                self.seen = self.seen * 0.5 + x.detach().mean()
        return _formed(self.leave(hidden), self.form)


def _formed(output: Tensor, form: Form) -> Any:
    match form:
        case "tuple":
            return output, output.sum()
        case "dict":
            return {"output": output, "number": 3}
        case "dataclass":
            return Pair(output, None)
        case "nested":
            return {"list": [output, {"pair": Pair(output * 2, (output.sum(), "text"))}]}
    return output


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested containers, in order."""
    if isinstance(value, Tensor):
        yield value
    for item in _inside(value):
        yield from tensors_in(item)


def skeleton_of(value: Any) -> str:
    """The containers of a value, in words, with ``*`` for a tensor."""
    if isinstance(value, Tensor):
        return "*"
    if isinstance(value, Mapping | list | tuple) or dataclasses.is_dataclass(value):
        names = value.keys() if isinstance(value, Mapping) else range(len(_inside(value)))
        inner = ", ".join(
            f"{name}: {skeleton_of(item)}" for name, item in zip(names, _inside(value), strict=True)
        )
        return f"{type(value).__name__}({inner})"
    return repr(value)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return []


def batch_of(case: WrapperCase, *, rank: int, step: int, index: int, forward: int) -> Tensor:
    """A rank's own input for one forward of pass `index`."""
    generator = torch.Generator().manual_seed(seed_of(case.seed, "batch", rank, step, index, forward))
    if case.module == "sparse":
        return torch.randint(0, 5, (_BATCH, 2), generator=generator)
    shape = (_BATCH, 2, 4, 4) if case.module == "conv" else (_BATCH, WIDTH)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def loss_of(output: Any) -> Tensor:
    """A 0-d loss that every tensor of an output has a part in."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors_in(output):
        total = total + tensor.double().square().mean()
    return total
