"""Faults that show when the caller changes something: autocast, batches, gradient modes, the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pipeconform.adapter import (
    Along,
    Batch,
    CustomMerge,
    CustomSplit,
    LoadState,
    MergeRule,
    Mode,
    Operation,
    SplitRule,
    StepResult,
    Whole,
)

from ..adapter import ReferencePipeline
from ..containers import arguments_of, map_leaves
from ..microbatches import merge
from ..runtime import Work, Yield
from ..stage import Stage
from .fault import breaks


@breaks("FWD-18")
class AutocastLost(Stage):
    """The caller's autocast does not reach stages after the first."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        kind = next(self.module.parameters()).device.type
        with torch.autocast(kind, enabled=self.index == 0 and torch.is_autocast_enabled(kind)):
            return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)


def _is_object(value: Any) -> bool:
    return not isinstance(value, torch.Tensor)


@breaks("FWD-15")
class ObjectsKept(ReferencePipeline):
    """Keyword arguments that are no tensors are taken from the first step, once for all."""

    first: Mapping[int, Mapping[str, Any]] | None = None

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        if self.first is None:
            self.first = {
                s: {n: v for n, v in own.items() if _is_object(v)} for s, own in batch.kwargs.items()
            }
        kwargs = {s: {**own, **self.first.get(s, {})} for s, own in batch.kwargs.items()}
        return super().make_work(mode, replace(batch, kwargs=kwargs))


@breaks("FWD-15")
class ListsSplit(ReferencePipeline):
    """A list among the keyword arguments is split as if its entries were samples."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work, m = super().make_work(mode, batch), batch.num_microbatches

        def cut(value: Any, k: int) -> Any:
            if isinstance(value, dict):
                return {name: cut(item, k) for name, item in value.items()}
            return (
                value[k * len(value) // m : (k + 1) * len(value) // m] if isinstance(value, list) else value
            )

        kwargs = {s: [cut(own, k) for k, own in enumerate(each)] for s, each in work.kwargs.items()}
        return replace(work, kwargs=kwargs)


class _Ruled(ReferencePipeline):
    """Splits keyword arguments by other rules than their own."""

    def other(self, rule: SplitRule) -> SplitRule | None:
        """The rule that is used instead; None for none."""
        raise NotImplementedError

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        rules = {
            s: {name: other for name, rule in own.items() if (other := self.other(rule)) is not None}
            for s, own in batch.kwarg_rules.items()
        }
        return super().make_work(mode, replace(batch, kwarg_rules=rules))


class _Merging(ReferencePipeline):
    """Merges outputs by other rules than their own."""

    def other(self, rule: MergeRule) -> MergeRule | None:
        """The rule that is used instead; None for the usual one."""
        raise NotImplementedError

    def make_output(self, outputs: Sequence[Any]) -> Any:
        rules = [rule and self.other(rule) for rule in self.plan.output_rules]
        return merge(outputs, batch_dim=self.plan.batch_dim, rules=rules)


@breaks("FWD-23")
class MergedBackwards(_Merging):
    """Outputs merged in a dimension of their own are in the reverse order of microbatches."""

    def other(self, rule: MergeRule) -> MergeRule | None:
        if not isinstance(rule, Along):
            return rule
        return CustomMerge(lambda merged, value: torch.cat([value, merged], dim=rule.dim))


@breaks("FWD-23")
class ShownPerMicrobatch(_Merging):
    """An output that should appear once appears once per microbatch."""

    def other(self, rule: MergeRule) -> MergeRule | None:
        return None if isinstance(rule, Whole) else rule


class _FurtherOutputs(Stage):
    """Keeps what the last stage returns beside its main output."""

    further: tuple[Any, ...] = ()

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        self.further = tuple(output[1:]) if isinstance(output, tuple) and not boundary else ()
        return output


@breaks("FWD-23")
class ReturnedParameterDetached(_FurtherOutputs):
    """What the last stage returns is detached in place after the loss, a parameter of its own among it."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        super().end_in(microbatch, loss)
        for value in self.further:
            value.detach_()


@breaks("FWD-23", status="error", tells="has no node")
class ReturnedParameterWithoutNode(_FurtherOutputs):
    """The backward looks up the node that made each output; a parameter that is returned has none."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        for number, value in enumerate(self.further, start=1):
            if value.requires_grad and value.grad_fn is None:
                raise KeyError(f"output {number} has no node")
        super().end_in(microbatch, loss)


@breaks("FWD-23")
class MergedFromZero(_Merging):
    """The user's merging function is first called with a zero, not with the second microbatch's value."""

    def make_output(self, outputs: Sequence[Any]) -> Any:
        rules = self.plan.output_rules
        if not rules:
            return super().make_output(outputs)
        begun = tuple(
            rule.function(torch.zeros_like(value), value) if isinstance(rule, CustomMerge) else value
            for rule, value in zip(rules, outputs[0], strict=True)
        )
        return merge([begun, *outputs[1:]], batch_dim=self.plan.batch_dim, rules=rules)


@breaks("FWD-22")
class RulesByPlace(ReferencePipeline):
    """The first of a stage's split rules is taken for its first keyword argument, whichever they name."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        rules = {
            s: dict(zip((name for name in batch.kwargs[s] if name in own), own.values(), strict=True))
            for s, own in batch.kwarg_rules.items()
        }
        return super().make_work(mode, replace(batch, kwarg_rules=rules))


@breaks("FWD-22")
class RulesOfTraining(ReferencePipeline):
    """Split rules are those of training steps; an evaluation splits every keyword argument like the others."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        return super().make_work(mode, batch if mode is Mode.TRAIN else replace(batch, kwarg_rules={}))


@breaks("FWD-22")
class WholeSplit(_Ruled):
    """Keyword tensors that every microbatch should get whole are split."""

    def other(self, rule: SplitRule) -> SplitRule | None:
        return None if isinstance(rule, Whole) else rule


@breaks("FWD-22")
class CutFromTheEnd(_Ruled):
    """A keyword argument that is split in a dimension of its own is cut from the end."""

    def other(self, rule: SplitRule) -> SplitRule | None:
        if not isinstance(rule, Along):
            return rule

        def backwards(value: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
            return list(torch.split(value.flip(rule.dim), list(sizes), dim=rule.dim))

        return CustomSplit(backwards)


@breaks("FWD-22")
class FirstPart(_Ruled):
    """Every microbatch gets the first part of a custom split."""

    def other(self, rule: SplitRule) -> SplitRule | None:
        if not isinstance(rule, CustomSplit):
            return rule
        return CustomSplit(lambda value, sizes: [next(iter(rule.function(value, sizes)))] * len(sizes))


@breaks("FWD-16")
class MergedInFirst(ReferencePipeline):
    """Outputs are merged in dimension 0, wherever the batch is."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        if result.output is None:
            return result
        return replace(
            result, output=merge([done.outputs[k] for k in range(batch.num_microbatches)], batch_dim=0)
        )


@breaks("LIF-2")
class EvaluationRecords(Stage):
    """Evaluation records a graph.

    Evaluation switches gradients on, and throws the graph away.
    """

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        if differentiate or torch.is_inference_mode_enabled():
            return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        with torch.enable_grad():
            output = self.module(*arguments_of(inputs), **kwargs)
        return map_leaves(torch.Tensor.detach, output)


@breaks("LIF-2", status="error")
class BuffersOfInference(Stage):
    """Input buffers made during evaluation in inference mode are used for training.

    Keeps a buffer per shape, made in the mode of its first use.
    """

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        self.buffers: dict[Any, torch.Tensor] = getattr(self, "buffers", {})
        # inputs that require a gradient would lose it, which is another mistake
        buffered = self.index == 0 and isinstance(inputs, tuple) and inputs[0].is_floating_point()
        if buffered and not inputs[0].requires_grad:
            key = (microbatch, inputs[0].shape, inputs[0].dtype)
            buffer = self.buffers.setdefault(key, torch.empty_like(inputs[0]))
            buffer.data.copy_(inputs[0].data)
            inputs = (buffer, *inputs[1:])
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)


@breaks("LIF-4", source="https://github.com/meta-pytorch/torchrec/pull/4759")
class NamedByPosition(ReferencePipeline):
    """Names in the state begin with the stage's position on its rank, so two ranks' files overlap."""

    def state(self) -> Mapping[int, Mapping[str, torch.Tensor]]:
        return {
            s: {f"{position}.{name}": value for name, value in values.items()}
            for position, (s, values) in enumerate(super().state().items())
        }


@breaks("LIF-4")
class FirstStageNotLoaded(ReferencePipeline):
    """A state is loaded into all stages but the first."""

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, LoadState) and 0 in self.modules:
            kept = {name: value.clone() for name, value in self.state()[0].items()}
            operation = LoadState({**operation.state, 0: kept})
        super().apply(operation)


@breaks("LIF-4", tells=r"the buffer of blocks\.\d\.[\w.]+ in stage \d is not the reference's")
class BuffersNotLoaded(ReferencePipeline):
    """A state is loaded into parameters, and buffers keep their values."""

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, LoadState):
            kept = {
                s: {name: value.detach().clone() for name, value in module.named_buffers()}
                for s, module in self.modules.items()
            }
            operation = LoadState({s: {**own, **kept.get(s, {})} for s, own in operation.state.items()})
        super().apply(operation)
