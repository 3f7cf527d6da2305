"""Faults of the front end that splits a whole model."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from pipeconform.adapter import Boundary, Split

from ..adapter import ReferencePipeline
from ..containers import map_leaves
from ..errors import SplitError
from ..front_end import Ties
from ..metadata import BoundaryMeta
from ..stage import Stage
from ..tracing import TracedPipe, TracedStage
from .fault import breaks


def _outputs_changed(pipe: TracedPipe, changed: Callable[[int, fx.Node], bool]) -> TracedPipe:
    """Detach the outputs that `changed` selects, of the stages before the last."""
    for s, module in enumerate(pipe.modules[:-1]):
        graph = module.graph
        output = graph.output_node()
        for node in output.all_input_nodes:
            if changed(s, node):
                with graph.inserting_before(output):
                    output.replace_input_with(node, graph.call_method("detach", (node,)))
        module.recompile()
    return pipe


@breaks("TRC-1")
class CutsDetached(ReferencePipeline):
    """What crosses the first cut is traced without its graph, so stage 0 gets no gradient."""

    def make_traced(self, split: Split) -> TracedPipe | None:
        pipe = super().make_traced(split)
        return pipe and _outputs_changed(pipe, lambda s, node: s == 0 and node.op != "placeholder")


class _Wrapped(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.submod = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.submod(*args, **kwargs)


@breaks("TRC-2", source="https://github.com/pytorch/PiPPy/pull/915", also=("TRC-1",))
class NamesPrefixed(ReferencePipeline):
    """The keys of a stage's state dict have a prefix, because stages are wrapped."""

    def make_traced(self, split: Split) -> TracedPipe | None:
        pipe = super().make_traced(split)
        wrapped = tuple(_Wrapped(module) for module in pipe.modules) if pipe else ()
        return pipe and replace(pipe, modules=cast("tuple[fx.GraphModule, ...]", wrapped))

    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        return super().make_ties(())


@breaks("TRC-3")
class SkipsDetached(ReferencePipeline):
    """A skip connection carries values but no gradient."""

    def make_traced(self, split: Split) -> TracedPipe | None:
        pipe = super().make_traced(split)
        return pipe and _outputs_changed(pipe, lambda s, node: node.op == "placeholder")


@breaks("TRC-3", also=("TRN-8",), source="https://github.com/pytorch/PiPPy/issues/32")
class TiesNotAdded(ReferencePipeline):
    """Ranks that share a parameter keep their own gradients."""

    def make_ties(self, shared: Sequence[Mapping[int, str]]) -> Ties:
        return super().make_ties(())


class _FrozenModeStage(TracedStage):
    @contextmanager
    def step(self, *, training: bool) -> Iterator[None]:
        with super().step(training=True):
            yield


@breaks("TRC-3")
class ModeFrozen(ReferencePipeline):
    """Traced stages stay in the mode they were traced in: batch norm evaluates with the batch's statistics."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        if self.traced is None:
            return super().make_stage(index, module)
        return _FrozenModeStage(module, index=index, info=self.traced.info, batch_dim=self.plan.batch_dim)


@breaks(
    "TRC-4", also=("TRC-6",), tells="no rank raised an error, although the split point .* names no submodule"
)
class NearestPointTaken(ReferencePipeline):
    """A split point that names no submodule is taken for the nearest name."""

    def make_traced(self, split: Split) -> TracedPipe | None:
        known = [name for name, _ in self.plan.model().named_modules() if name]
        free = [name for name in known if name not in {point.module for point in split.points}]
        points = tuple(
            point if point.module in known else replace(point, module=_nearest(point.module, free))
            for point in split.points
        )
        return super().make_traced(replace(split, points=points))


def _nearest(name: str, known: Sequence[str]) -> str:
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


@breaks("TRC-6", tells="but the error does not name it")
class PointNotNamed(ReferencePipeline):
    """The error about a wrong split point does not name it."""

    def make_traced(self, split: Split) -> TracedPipe | None:
        try:
            return super().make_traced(split)
        except SplitError:
            raise ValueError("the model cannot be split as asked") from None


class _ForgetfulStage(TracedStage):
    def forward(self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], **how: Any) -> Any:
        if self.index:
            traced = iter(self._arriving.tensors)
            inputs = map_leaves(lambda leaf: _within(leaf, next(traced).shape), inputs)
        return Stage.forward(self, microbatch, inputs, kwargs, **how)


@breaks("TRC-5")
class BeyondTracedLost(ReferencePipeline):
    """Buffers have the traced shape, so the rest of a larger microbatch arrives as zeros."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        if self.traced is None:
            return super().make_stage(index, module)
        return _ForgetfulStage(module, index=index, info=self.traced.info, batch_dim=self.plan.batch_dim)


def _within(leaf: Tensor, shape: Sequence[int]) -> Tensor:
    kept = torch.zeros_like(leaf)
    inside = tuple(slice(size) for size in shape)
    kept[inside] = leaf.detach()[inside]
    return kept.requires_grad_(leaf.requires_grad)


class _ConfusedStage(TracedStage):
    def _hold(self, what: str, value: Any, traced: BoundaryMeta) -> None:
        try:
            super()._hold(what, value, traced)
        except ValueError as error:
            place, _, rest = str(error).partition(" is ")
            there, _, rest = rest.partition(", but ")
            was, _, rest = rest.partition(" was traced")
            raise ValueError(f"{place} is {was}, but {there} was traced{rest}") from None


@breaks("TRC-5", tells="the error swaps the two shapes")
class ShapesExchanged(ReferencePipeline):
    """The error about a wrong shape confuses the traced and the actual one."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        if self.traced is None:
            return super().make_stage(index, module)
        return _ConfusedStage(module, index=index, info=self.traced.info, batch_dim=self.plan.batch_dim)


@breaks("TRC-5")
class DtypeGuessed(ReferencePipeline):
    """The dtype that is declared for a boundary before the first step is wrong."""

    def boundaries(self) -> Sequence[Boundary]:
        guess = {torch.float64: torch.float32, torch.float32: torch.float64}
        return [
            replace(one, tensors=tuple(replace(t, dtype=guess.get(t.dtype, t.dtype)) for t in one.tensors))
            for one in super().boundaries()
        ]
