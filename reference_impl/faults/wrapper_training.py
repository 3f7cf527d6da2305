"""Data-parallel wrappers that are wrong about scaled losses, precision, steps in backward, groups, state or pickles.

Every class changes one thing in the reference's wrapper; `wrappers` has those that are wrong about gradients.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from ..data_parallel import DataParallel, Options
from ..replica_log import Log
from ..replica_outputs import tensors_in
from ..replica_precision import MixedPrecision
from ..replica_state import broadcast
from .fault import breaks_promise
from .wrappers import AfterPass

__all__: list[str] = []


@breaks_promise("DPW-27", tells="after step [12]")
class InfinityAtHome(AfterPass):
    """Ranks whose own gradients are finite take the step.

    What is infinite on one rank is zero on the others, as if only the first rank had to look.
    """

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if dist.get_rank():
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)  # type: ignore[union-attr]


@breaks_promise("DPW-27", tells="after step 1")
class InfinityCutOff(AfterPass):
    """Infinite gradients are made zero."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        parameter.grad.nan_to_num_(0.0, 0.0, 0.0)  # type: ignore[union-attr]


class _OtherPrecision(DataParallel):
    def __init__(self, module: nn.Module, *, options: Options, **how: Any) -> None:
        mixed = options.mixed_precision
        changed = None if mixed is None else self._other(mixed)
        super().__init__(module, options=dataclasses.replace(options, mixed_precision=changed), **how)

    def _other(self, mixed: MixedPrecision) -> MixedPrecision:
        raise NotImplementedError


@breaks_promise("DPW-28", tells="probe")
class ReducedAsComputed(_OtherPrecision):
    """Gradients are reduced in the dtype of the computation."""

    def _other(self, mixed: MixedPrecision) -> MixedPrecision:
        return dataclasses.replace(mixed, reduce_dtype=mixed.param_dtype)


@breaks_promise("DPW-28", tells="probe")
class ReducedInFull(_OtherPrecision):
    """Gradients are reduced in full precision."""

    def _other(self, mixed: MixedPrecision) -> MixedPrecision:
        return dataclasses.replace(mixed, reduce_dtype=None)


@breaks_promise("DPW-28", tells="the output is")
class ComputedInFull(_OtherPrecision):
    """The forward computes in full precision."""

    def _other(self, mixed: MixedPrecision) -> MixedPrecision:
        return dataclasses.replace(mixed, param_dtype=None)


@breaks_promise("DPW-28", tells="the output is")
class BuffersInFull(_OtherPrecision):
    """Buffers are not cast."""

    def _other(self, mixed: MixedPrecision) -> MixedPrecision:
        return dataclasses.replace(mixed, buffer_dtype=None)


@breaks_promise("DPW-29", tells="leave.weight")
class DelayedForEver(DataParallel):
    """Delayed parameters are never reduced."""

    def __init__(self, module: nn.Module, *, options: Options, **how: Any) -> None:
        ignored = options.ignored | options.delayed
        super().__init__(module, options=dataclasses.replace(options, ignored=ignored), **how)


@breaks_promise("DPW-29", tells="leave.weight")
class DelayedSummed(AfterPass):
    """Delayed parameters' gradients are not divided."""

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if name in self.options.delayed:
            parameter.grad.mul_(self.group.size())  # type: ignore[union-attr]


@breaks_promise("DPW-30", tells="after step 0")
class StepBeforeReduction(DataParallel):
    """Steps are taken with each rank's own gradient."""

    def step_in_backward(self, optimizer_of: Callable[[nn.Parameter], Optimizer]) -> None:
        for parameter in self._parameters_kept.values():
            step = functools.partial(_step, optimizer_of(parameter))
            parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]


def _step(optimizer: Optimizer, _: Tensor) -> None:
    optimizer.step()


@breaks_promise("DPW-30", tells="after step 0")
class StepTwice(DataParallel):
    """Every step is taken twice."""

    def step_in_backward(self, optimizer_of: Callable[[nn.Parameter], Optimizer]) -> None:
        super().step_in_backward(optimizer_of)
        for name, parameter in self._parameters_kept.items():
            optimizer = optimizer_of(parameter)
            self._steps[name] = functools.partial(_both, optimizer.step, self._steps[name])


def _both(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    one()
    other()


@breaks_promise("DPW-31", tells="step 2")
class OldDivisor(AfterPass):
    """Means are over the original number of ranks."""

    first = 0

    def change_group(self, group: ProcessGroup) -> None:
        self.first = self.group.size()
        super().change_group(group)

    def _spoil(self, name: str, parameter: nn.Parameter) -> None:
        if self.first:
            parameter.grad.mul_(self.group.size() / self.first)  # type: ignore[union-attr]


@breaks_promise("DPW-31", tells="given 0 elements")
class HookLostWithGroup(DataParallel):
    """The hook is lost with the group."""

    def change_group(self, group: ProcessGroup) -> None:
        super().change_group(group)
        self._hook = None


@breaks_promise("DPW-31", status="hung", tells="progress")
class OldGroup(DataParallel):
    """The wrapper waits for the old group."""

    def change_group(self, group: ProcessGroup) -> None:
        pass


@breaks_promise("DPW-32", status="error", tells="no gradient")
class AnyBackwardEnds(DataParallel):
    """Gradients of inputs end the pass: they are taken for a backward that reaches no parameter."""

    def _backward_ended(self) -> None:
        self.end_pass()


class _Sink(torch.autograd.Function):
    """Passes tensors on, as views, and gradients without what made them."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.detach() for gradient in gradients)


@breaks_promise("DPW-32", tells="gradient of")
class SecondOrderLost(DataParallel):
    """Gradients pass through a function of the wrapper that cannot be differentiated twice."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return _Sink.apply(result)[0] if isinstance(result, Tensor) else result  # type: ignore[no-untyped-call]


@breaks_promise("DPW-33", status="error", tells="is a view")
class OutputsAreViews(DataParallel):
    """Outputs cannot be modified."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        return _Sink.apply(result, result.sum())[0] if isinstance(result, Tensor) else result  # type: ignore[no-untyped-call]


@breaks_promise("DPW-33", tells="gradient of")
class OutputsShared(DataParallel):
    """Gradients are scaled by the outputs' values at the time of the backward, not the original ones."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        result = super().forward(*args, **kwargs)
        for tensor in tensors_in(result):
            if tensor.requires_grad and not tensor.is_leaf:
                seen = tensor.detach()
                ratio = functools.partial(_ratio, seen, seen.clone())
                tensor.register_hook(ratio)  # type: ignore[no-untyped-call]
        return result


def _ratio(now: Tensor, then: Tensor, gradient: Tensor) -> Tensor:
    return gradient * (now / then)


@breaks_promise("DPW-34", tells="seen|running")
class BufferHookMissed(DataParallel):
    """The buffer hook is not called."""

    def synchronise_buffers(self) -> None:
        broadcast(self._buffers_kept().values(), self.group)


@breaks_promise("DPW-34", tells="seen|running")
class BufferHookAlwaysBefore(DataParallel):
    """The buffer hook is always called before the forward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.options = dataclasses.replace(self.options, buffers_when="before_forward")
        return super().forward(*args, **kwargs)


@breaks_promise("DPW-35", tells="module.enter")
class SavedWithPrefix(DataParallel):
    """Names have the wrapper's prefix."""

    def full_state(self) -> Mapping[str, Tensor]:
        return {f"module.{name}": value for name, value in super().full_state().items()}


@breaks_promise("DPW-35", tells="running_mean")
class SavedWithoutBuffers(DataParallel):
    """Buffers are not saved."""

    def full_state(self) -> Mapping[str, Tensor]:
        return dict(self.module.named_parameters(remove_duplicate=False))


@breaks_promise("DPW-35", tells="after loading")
class LoadedOnOneRank(DataParallel):
    """Only the first rank loads."""

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        if dist.get_rank() == 0:
            super().load_full_state(state)


@breaks_promise("DPW-35", tells="ranks saved")
class OtherWorldsSkipped(DataParallel):
    """A state that another number of ranks saved is silently skipped."""

    def full_state(self) -> Mapping[str, Tensor]:
        found: OrderedDict[str, Tensor] = OrderedDict(super().full_state())
        vars(found)["ranks"] = self.group.size()
        return found

    def load_full_state(self, state: Mapping[str, Tensor]) -> None:
        if getattr(state, "ranks", self.group.size()) == self.group.size():
            super().load_full_state(state)


@breaks_promise("DPW-36", tells="raised nothing")
class PickledAnywhere(DataParallel):
    """A pickle leaves out the process group."""

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), options=self.options, broadcasts=False), (self.module,)


@breaks_promise("DPW-36", tells="step 1")
class PickledAlone(DataParallel):
    """A wrapper from a pickle knows no other replicas, so nothing is reduced."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.alone = True

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {}


@breaks_promise("DPW-37", tells="rank is reported as")
class LogOfOthers(DataParallel):
    """Every rank's log describes the first."""

    def logged(self) -> dict[str, object]:
        return {**super().logged(), "rank": 0}


class _AnyRate(Log):
    def set_rate(self, rate: int) -> None:
        pass


@breaks_promise("DPW-37", tells="raised nothing")
class AnyRate(DataParallel):
    """Any rate is accepted."""

    def __init__(self, module: nn.Module, **how: Any) -> None:
        super().__init__(module, **how)
        self.log = _AnyRate()


@breaks_promise("DPW-38", tells="raised nothing")
class AnyDevice(DataParallel):
    """Device arguments are not checked."""

    def __init__(self, module: nn.Module, *, options: Options, **how: Any) -> None:
        super().__init__(module, options=dataclasses.replace(options, device=None), **how)
