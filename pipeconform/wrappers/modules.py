"""The modules, batches and losses of wrapper cases; the ranks and the oracle build equal ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from msgspec import structs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeconform.case.seeds import seed_of
from pipeconform.case.wrapper_case import Form, WrapperCase
from pipeconform.wrappers.deferring import initialised
from pipeconform.wrappers.references import is_reference, reference_to
from pipeconform.wrappers.sharded_modules import SHARDED_MODULES, build_sharded

__all__ = [
    "NO_PARAMETER",
    "WIDTH",
    "Pair",
    "batch_of",
    "begun",
    "build",
    "loss_of",
    "objective",
    "skeleton_of",
    "tensors_in",
]

WIDTH, _BATCH = 4, 3
NO_PARAMETER = "-"
"""In place of towers: a forward that uses no parameter, but whose output requires a gradient."""
_MANY = 1 << 18
"""The number of elements of a parameter whose reduction takes some time."""
_PROBES = (256.0, 1.0)
"""Gradients by rank. Their mean, 128.5, has nine significant bits, which bfloat16 rounds to 128."""


@dataclasses.dataclass
class Pair:
    """A dataclass as an output."""

    first: Any
    rest: Any


def build(case: WrapperCase, *, rank: int) -> nn.Module:
    """The replica of a rank, with its initial values.

    Shapes: input ``[3, 4]`` float64, output ``[3, 3]``; ``conv`` takes ``[3, 2, 4, 4]``, ``sparse`` int64 ``[3, 2]``.
    """
    module = build_sharded(case, rank=rank) if case.module in SHARDED_MODULES else _built(case, rank=rank)
    if case.deferred:
        initialised(module, above=rank if case.own_values else 0)
    return module


def _built(case: WrapperCase, *, rank: int) -> nn.Module:
    values = seed_of(case.seed, "module", rank if case.own_values else 0)
    generator = torch.Generator().manual_seed(values)
    module = _Module(case, wide=case.own_shape and rank == case.ranks - 1)
    module.slope = _PROBES[rank % len(_PROBES)]
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


def begun(case: WrapperCase, *, rank: int) -> nn.Module:
    """The module with which a rank begins: its replica, or one with the values of the state that it loads."""
    saved = structs.replace(case, seed=case.seed + 1, deferred="")
    return build(saved if case.special == "loaded" else case, rank=rank)


class _Module(nn.Module):
    own_seen: Tensor
    seen: Tensor
    slope = 0.0
    """The gradient of the probe on this rank, whatever the loss."""

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
            case "assigned" | "mixed":
                self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
            case "conv":
                conv = nn.Conv2d(2, WIDTH, 3, dtype=torch.float64)
                self.conv = conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            case "sparse":
                self.table = nn.Embedding(5, WIDTH, sparse=True, dtype=torch.float64)
            case "checkpoint_unused" | "reentrant_unused":
                self.spare = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
            case "two_devices":
                self.away = nn.Linear(WIDTH, WIDTH, dtype=torch.float64, device="meta")
        if case.module in ("mixed", "probed"):
            self.probe = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.leave = nn.Linear(middle, 3, dtype=torch.float64)
        if case.module == "single":
            self.heavy = nn.ParameterDict({"many": torch.zeros(_MANY)})
            self.float()

    def forward(self, x: Tensor, use: str = "ab") -> Any:
        match self.kind:
            case "conv":
                x = self.conv(x).mean((2, 3))
            case "sparse":
                x = self.table(x).mean(1)
            case "single":
                x = x.float()
        if use == NO_PARAMETER:
            return _formed(x.detach().requires_grad_()[:, :3] * 2, self.form)
        if self.kind.startswith(("checkpoint", "reentrant")):
            x = x.detach().requires_grad_()
            hidden = checkpoint(self.enter, x, use_reentrant=self.kind.startswith("reentrant"))
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
            case "mixed":
                dtypes = f"{x.dtype}, {hidden.dtype}, {self.seen.dtype}"
                self.seen.mul_(0.5).add_(x.detach().mean().to(self.seen.dtype))
                return {"output": self.leave(hidden), "probe": self._probed(), "computed in": dtypes}
            case "probed":
                return self.leave(hidden), self.probe * 2
            case "single":
                hidden = hidden + self.heavy["many"].mean()
        return _formed(self.leave(hidden), self.form)

    def _probed(self) -> Tensor:
        probe = self.probe * 1
        if probe.requires_grad:
            probe.register_hook(lambda slope: torch.full_like(slope, self.slope))  # type: ignore[no-untyped-call]
        return probe


def _formed(output: Tensor, form: Form) -> Any:
    match form:
        case "tuple":
            return output, output.sum()
        case "dict":
            return {"output": output, "number": 3}
        case "dataclass":
            return Pair(output, None)
        case "reference":
            return reference_to(output)
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
    if is_reference(value):
        return f"reference to {skeleton_of(value.local_value())}"
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
    if is_reference(value):
        return [value.local_value()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return []


def batch_of(case: WrapperCase, *, rank: int, step: int, index: int, forward: int) -> Tensor:
    """A rank's input for one forward of pass `index`."""
    generator = torch.Generator().manual_seed(seed_of(case.seed, "batch", rank, step, index, forward))
    if case.module == "sparse":
        return torch.randint(0, 5, (_BATCH, 2), generator=generator)
    shape = (_BATCH, 2, 4, 4) if case.module == "conv" else (_BATCH, WIDTH)
    batch = torch.randn(shape, generator=generator, dtype=torch.float64)
    return batch.requires_grad_(case.special == "penalty")


def objective(case: WrapperCase, outputs: list[Any], batches: list[Tensor]) -> Tensor:
    """The 0-d loss of several forwards of a case.

    If the case asks for it, outputs are first modified in place, or gradients for the batches are part of the loss.
    """
    if case.special == "modified":
        for tensor in tensors_in(outputs):
            tensor.mul_(3)
    loss = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        loss = loss + loss_of(output)
    for batch in batches if case.special == "penalty" else ():
        (slope,) = torch.autograd.grad(loss, batch, create_graph=True)
        loss = loss + slope.square().sum()
    return loss


def loss_of(output: Any) -> Tensor:
    """A 0-d loss over every tensor of an output."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tensors_in(output):
        total = total + tensor.double().square().mean()
    return total
