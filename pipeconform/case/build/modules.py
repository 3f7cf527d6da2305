"""Builds the torch modules of a case, with the same parameters on every rank and in the oracle.

Stages are built from seeds of their own under a forked random state, so building changes no other random numbers, and
any process can build any stage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeconform.case.blocks import Rescaled
from pipeconform.case.build import merges, passages
from pipeconform.case.build.decoder import DecoderLayer
from pipeconform.case.build.hook_layers import InputHookedLayer
from pipeconform.case.build.layers import VOCABULARY, DropoutLayer, module_of
from pipeconform.case.case import Case, KwargKind, Model, Stage
from pipeconform.case.seeds import seed_of, seed_process

__all__ = [
    "VOCABULARY",
    "Edges",
    "Intruder",
    "Recorder",
    "StageModule",
    "Watcher",
    "build_model",
    "build_stage",
    "composed",
    "tie",
]


class Recorder(Protocol):
    """Receives the forwards of stage modules; they have none by default."""

    def forward(
        self, stage: int, inputs: tuple[Any, ...], output: Any, masks: list[Tensor], *, training: bool
    ) -> None:
        """A forward of `stage` ended; `training` if any of its modules was in training mode."""

    def masks(self, stage: int) -> Sequence[Tensor]:
        """The dropout masks that the next forward of `stage` must use; empty to draw them."""

    def exported(self, stage: int) -> None:
        """``torch.export`` follows a forward of `stage`: nothing is computed, and what it makes runs instead of it."""


class Watcher(Protocol):
    """Observes when a stage computes, forwards and backwards; see `pipeconform.observe.timeline`."""

    def forward(
        self, module: nn.Module, stage: int, inputs: tuple[Any, ...]
    ) -> AbstractContextManager[tuple[Any, ...]]:
        """Surround one forward of `stage`, which computes on the yielded inputs."""


class Intruder(Protocol):
    """Delays, stops or breaks a stage's computations; see `pipeconform.execute.disturber`."""

    def before(self, stage: int, inputs: tuple[Any, ...]) -> tuple[int | None, tuple[Any, ...]]:
        """A forward of `stage` begins; return its number and the inputs to compute on."""

    def after(self, stage: int, microbatch: int | None, output: Any) -> Any:
        """The forward has ended with `output`; return the output to use."""


class Edges(Protocol):
    """Converts the main stream where `DTensor`s pass between stages or enter; see `pipeconform.execute.cutting`."""

    def arrived(self, x: Tensor, *, first: bool) -> Tensor:
        """The whole tensor that arrived from the previous stage, or that the first stage was given."""

    def leaving(self, x: Tensor, *, last: bool) -> Tensor:
        """The part of the whole tensor that goes to the next stage, or that the last stage returns."""


class StageModule(nn.Module):
    """One stage: ``forward(x, *carried, **kwargs)`` returns the next stage's positional arguments.

    The last stage returns the model's output. A recorder, if set, gets every forward; it changes neither values nor
    the autograd graph.
    """

    recorder: Recorder | None = None
    timeline: Watcher | None = None
    intruder: Intruder | None = None
    edges: Edges | None = None

    def __init__(self, model: Model, index: int, stage: Stage) -> None:
        super().__init__()
        self.model, self.index = model, index
        self.last = index == len(model.stages) - 1
        self.arriving = passages.arriving(model, index)
        self.num_inputs = 1 + len(model.carried) + len(self.arriving)
        self.blocks = nn.ModuleList(module_of(block, model) for block in stage.blocks)
        self.changes_inputs = any(isinstance(block, Rescaled) for block in stage.blocks)
        self.drops = any(isinstance(part, DropoutLayer) for part in self.modules())
        if any(one.kind == "learned" for one in passages.leaving(model, index) if one.source == index):
            self.learned = nn.Parameter(torch.empty(model.width))
        self.returned: nn.Parameter | None = None
        if self.last and "parameter" in model.merged:
            self.returned = nn.Parameter(torch.empty(model.width))
        if index in model.tied:
            self.tied = nn.Parameter(torch.empty(model.width, model.width))
        if self.last and model.readout:
            size = model.classes or model.width
            self.readout = nn.Parameter(torch.empty(size, size))
        self.kwargs = {kwarg.name: kwarg.kind for kwarg in model.kwargs if kwarg.stage == index}
        self.told = {
            kwarg.name: "block_mask" if kwarg.is_block_mask else kwarg.kind
            for kwarg in model.kwargs
            if kwarg.stage == index and kwarg.is_for_decoders
        }

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the stage on one microbatch."""
        if torch.compiler.is_exporting():
            if self.recorder is not None:
                self.recorder.exported(self.index)
            return self._run(inputs, inputs, kwargs, recorder=None)
        if self.intruder is None:
            return self._seen(inputs, kwargs)
        microbatch, given = self.intruder.before(self.index, inputs)
        return self.intruder.after(self.index, microbatch, self._seen(given, kwargs))

    def _seen(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.timeline is None:
            return self._run(inputs, inputs, kwargs, recorder=self.recorder)
        with self.timeline.forward(self, self.index, inputs) as seen:
            return self._run(inputs, seen, kwargs, recorder=self.recorder)

    def _run(
        self,
        inputs: tuple[Any, ...],
        seen: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        recorder: Recorder | None,
    ) -> Any:
        """Compute on `seen`, which is `inputs` or watched views of them; record `inputs`."""
        if unknown := kwargs.keys() - self.kwargs.keys():
            raise TypeError(f"stage {self.index} got unexpected keyword arguments {sorted(unknown)}")
        if missing := self.kwargs.keys() - kwargs.keys():
            raise TypeError(f"stage {self.index} misses keyword arguments {sorted(missing)}")
        if len(inputs) != self.num_inputs:
            raise TypeError(
                f"stage {self.index} takes {self.num_inputs} positional inputs, got {len(inputs)}"
            )
        dropouts = [part for part in self.modules() if isinstance(part, DropoutLayer)] if self.drops else []
        masks = recorder.masks(self.index) if recorder is not None else ()
        for dropout, mask in zip_longest(dropouts, masks[: len(dropouts)]):
            dropout.replay, dropout.drawn = mask, None
        for block in self.blocks:
            if isinstance(block, InputHookedLayer):
                block.watch(inputs)
        # recorded is what was given, and not what became of it
        received = tuple(one.detach().clone() for one in inputs) if self.changes_inputs else inputs
        x, *others = seen
        if self.edges is not None:
            x = self.edges.arrived(x, first=self.index == 0)
        carried, passing = others[: len(self.model.carried)], others[len(self.model.carried) :]
        for block in self.blocks[:1] if self.model.tokens and self.index == 0 else ():
            x = block(x)
        x = self._mix(x, carried, kwargs)
        for passage, value in zip(self.arriving, passing, strict=True):
            if self.index in passage.users:
                x = passages.use(passage.kind, x, value)
        told = {name: kwargs[given] for given, name in self.told.items()}
        for block in self.blocks[1:] if self.model.tokens and self.index == 0 else self.blocks:
            x = block(x, **told) if isinstance(block, DecoderLayer) else block(x)
        if self.index in self.model.tied:
            x = x + torch.tanh(functional.linear(x, self.tied))
        if self.returned is not None:
            x = x * (1.0 + torch.tanh(self.returned))
        if not self.model.view_outputs:
            # a linear map over a sequence returns a view, and views are a subject of their own
            x = x * 1.0
        output = self._output(x) if self.last else self._boundary(x, carried, passing)
        if recorder is not None:
            drawn = [d.drawn for d in dropouts if d.drawn is not None]
            training = any(module.training for module in self.modules())
            recorder.forward(self.index, received, output, drawn, training=training)
        return output

    def _mix(self, x: Tensor, carried: list[Tensor], kwargs: Mapping[str, Any]) -> Tensor:
        """Apply carried tensors and keyword arguments; each changes the main stream by much more than rounding."""
        for kind, value in zip(self.model.carried, carried, strict=True):
            if kind == "positions":
                x = x + value.to(x.dtype).unsqueeze(-1) * 0.125
            elif kind == "mask":
                x = torch.where(value.unsqueeze(-1), x, x * 0.5)
            elif kind == "scale":
                x = x * value.unsqueeze(-1)
            else:
                x = x + 0.5 * value
        for name in sorted(kwargs.keys() - self.told.keys()):
            x = x * (1.0 + _gain_of(self.kwargs[name], kwargs[name], like=x, batch_dim=self.model.batch_dim))
        return x

    def _boundary(self, x: Tensor, carried: list[Tensor], passing: list[Tensor]) -> Any:
        if self.model.container == "tensor":
            return x if self.edges is None else self.edges.leaving(x, last=False)
        onward = [
            value * 0.75 + 0.25 * x if kind == "stream" else value
            for kind, value in zip(self.model.carried, carried, strict=True)
        ]
        held = dict(zip(self.arriving, passing, strict=True))
        for passage in passages.leaving(self.model, self.index):
            if passage.source != self.index:
                onward.append(held[passage])
            elif passage.kind == "learned":
                onward.append(torch.tanh(self.learned) + torch.zeros_like(x))
            else:
                onward.append(passages.make(passage.kind, x))
        return (x, *onward) if self.model.container == "tuple" else [x, *onward]

    def _output(self, x: Tensor) -> Any:
        if self.model.merged:
            return (x, *(merges.made(kind, x, parameter=self.returned) for kind in self.model.merged))
        match self.model.output:
            case "tensor":
                return x if self.edges is None else self.edges.leaving(x, last=True)
            case "tuple1":
                return (x,)
            case "tuple":
                return (x, x * x)
            case _:
                return {"result": x, "square": x * x}


def _gain_of(kind: KwargKind, value: Any, *, like: Tensor, batch_dim: int) -> Any:
    """The gain of a keyword argument: a number, or a tensor that broadcasts over the main stream."""
    match kind:
        case "objects":
            return _weight_of(value)
        case "whole":
            return value.mean(0)
        case "turned":
            # cut as rows should be, it still has a shape that runs; and the other way round
            return _per_sample(value.reshape(-1, len(like)).mean(0), ndim=like.ndim)
        case "rows":
            return _per_sample(value.reshape(len(like), -1).mean(1), ndim=like.ndim)
        case "listed":
            samples = torch.tensor(value, dtype=like.dtype, device=like.device)
            return _per_sample(samples, ndim=like.ndim - batch_dim)
    return value.unsqueeze(-1) if isinstance(value, Tensor) else value


def _per_sample(gains: Tensor, *, ndim: int) -> Tensor:
    """A gain for every sample, in the first of `ndim` dimensions."""
    return gains.reshape(-1, *(1 for _ in range(ndim - 1)))


def _weight_of(objects: Mapping[str, Any]) -> float:
    """A number that changes when any of the objects does, or the order of the samples' names."""
    names = sum(place * int(name.split()[1]) for place, name in enumerate(objects["names"], start=1))
    found = objects["factor"] + len(objects["text"]) / 16 + names / 64
    return float(found) if objects["nothing"] is None else 0.0


def build_stage(case: Case, index: int) -> StageModule:
    """Stage `index` on the CPU with its initial parameters; two calls give equal modules."""
    model = case.model
    with torch.random.fork_rng(devices=[]):
        seed_process(seed_of(case.seed, "stage", index))
        module = StageModule(model, index, model.stages[index])
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if model.is_exact:
                    parameter.fill_(1.0)
                    continue
                # no zero biases and no unit scales: they would hide a missing factor
                fan_in = parameter.shape[-1] if parameter.ndim > 1 else 4
                parameter.normal_(std=fan_in**-0.5)
                if name.endswith("weight") and parameter.ndim == 1:
                    parameter.add_(1.0)
            if index in model.tied:
                seed_process(seed_of(case.seed, "tied"))
                module.tied.normal_(std=model.width**-0.5)
    module.to(getattr(torch, model.dtype))
    frozen_stage = model.stages[index].frozen
    for block, built in zip(model.stages[index].blocks, module.blocks, strict=True):
        if frozen_stage or block.frozen:
            built.requires_grad_(requires_grad=False)
    return module


def tie(case: Case, stages: Sequence[nn.Module], *, owned: Collection[int] = ()) -> None:
    """Make the stages that `case` ties share one parameter: that of an `owned` stage, if there is one."""
    tied = sorted(case.model.tied, key=lambda s: s not in owned)
    for s in tied[1:]:
        stages[s].tied = stages[tied[0]].tied


class _Model(nn.Module):
    """The composition of all stages, for engines and front ends that take a whole model."""

    def __init__(self, stages: Sequence[StageModule]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._chain = tuple(stages)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        values: Any = inputs
        for stage in self._chain:
            own = {name: kwargs[name] for name in stage.kwargs if name in kwargs}
            values = stage(*(values if isinstance(values, tuple | list) else (values,)), **own)
        return values


def build_model(
    case: Case, *, recorder: Recorder | None = None, intruder: Intruder | None = None
) -> nn.Module:
    """The whole model on the CPU; parameter names are ``stages.<s>.<builder's name>``."""
    stages = [build_stage(case, index) for index in range(case.num_stages)]
    return composed(case, stages, recorder=recorder, intruder=intruder)


def composed(
    case: Case,
    stages: Sequence[StageModule],
    *,
    owned: Collection[int] = (),
    recorder: Recorder | None = None,
    intruder: Intruder | None = None,
) -> nn.Module:
    """The composition of `stages`, tied as the case says."""
    tie(case, stages, owned=owned)
    for stage in stages:
        stage.recorder, stage.intruder = recorder, intruder
    return _Model(stages)
