"""Runs a wrapper case on one rank; used in rank processes only."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from pipeconform.case.seeds import seed_process
from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.contract.placing import placed
from pipeconform.errors import Unsupported
from pipeconform.observe.array import Array
from pipeconform.ranks.rank import raised_from
from pipeconform.wrapper import Wrapper, WrapperAdapter
from pipeconform.wrappers.elsewhere import naming_another_device
from pipeconform.wrappers.modules import batch_of, build, objective, skeleton_of, tensors_in
from pipeconform.wrappers.observation import Failure, PassShown, Shown, StepShown
from pipeconform.wrappers.references import agent_for
from pipeconform.wrappers.sharded_modules import compile_parts
from pipeconform.wrappers.sharded_training import beside, has_ddp_beside, late, optimizer_of
from pipeconform.wrappers.special import FIRST_SCALE, ended, handed_over, prepared, regrouped

__all__ = ["shown_by"]

_LATE = 0.2
"""The number of seconds by which a late rank delays its backward."""


def shown_by(
    adapter: WrapperAdapter, case: WrapperCase, *, rank: int, device: str = "cpu", checkpoint: bytes = b""
) -> Shown:
    """Run a case on this rank of the default process group; an exception is part of the result.

    Modules and batches are on `device`. `checkpoint` is what another world saved and this one must load.
    """
    seed_process(case.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an engine's advice about options is not judged
        with agent_for(case):
            return _Rank(case, rank=rank, device=device, checkpoint=checkpoint).run(adapter)


class _Rank:
    """Runs a case on one rank and records what it shows."""

    def __init__(self, case: WrapperCase, *, rank: int, device: str, checkpoint: bytes) -> None:
        self.case, self.checkpoint, self.rank, self.where = case, checkpoint, rank, "wrap"
        self.device = device
        self.shown = Shown(rank=rank)
        self.hook_elements = 0
        self.group: Any = None
        """The group in which the user's hook reduces; None for the default group."""
        self.scaler: Any = None
        self.optimizer: torch.optim.Optimizer | None = None
        """The optimizer, kept between steps if it has state."""

    def run(self, adapter: WrapperAdapter) -> Shown:
        try:
            self._run(adapter)
        except Unsupported as reason:
            self._note(unsupported=str(reason))
        except Exception as error:
            told = Failure(
                where=self.where,
                type=type(error).__qualname__,
                message=str(error),
                raised=raised_from(error),
            )
            self._note(failed=told)
        return self.shown

    def _note(self, **changes: Any) -> None:
        self.shown = msgspec.structs.replace(self.shown, **changes)

    def _run(self, adapter: WrapperAdapter) -> None:
        case = self.case
        module = placed(build(case, rank=self.rank), self.device)
        if case.compiled:
            compile_parts(module)
        options = naming_another_device(case.options, device=self.device)
        wrapper = adapter.wrap(module.to("meta") if case.deferred else module, options)
        if case.deferred == "never":
            self.where = "step 0"
            wrapper.run(self._batch(0, 0, 0))
            return
        if case.deferred:
            self.where = "materialise"
            wrapper.materialise()
        self.where = case.special or "wrap"
        wrapper = prepared(case, 0, wrapper)
        if self.checkpoint:
            self.where = "load"
            handed_over(self.checkpoint, wrapper)
        self._note(initial=_state(wrapper))
        self.where = "hook"
        self._register(wrapper)
        self.scaler = wrapper.scaler(FIRST_SCALE) if case.special == "scaled" else None
        with self._join(wrapper), late(case):
            for index, step in enumerate(case.steps[: case.num_steps(self.rank)]):
                self.where = case.special or f"step {index}"
                wrapper = prepared(case, index, wrapper) if index else wrapper
                if case.regroup is not None and index == case.regroup.step:
                    self.group = regrouped(case, wrapper)
                self.where = f"step {index}"
                self._note(steps=(*self.shown.steps, self._step(wrapper, index, step)))
            self.where = "the end of join"
        if case.regroup is not None and self.rank not in case.regroup.ranks:
            regrouped(case, wrapper)
        self.where = case.special or "the end"
        self._note(final=_state(wrapper), **ended(case, wrapper))
        if has_ddp_beside(case) and not self.checkpoint:
            self._note(beside=beside(case, self.rank, device=self.device))

    def _join(self, wrapper: Wrapper) -> AbstractContextManager[Any]:
        how = self.case.uneven
        if how is None:
            return nullcontext()
        return wrapper.join(divide_by_initial=how.divide_by_initial, raise_early=how.raise_early)

    def _step(self, wrapper: Wrapper, index: int, step: Step) -> StepShown:
        optimizer = self.optimizer or optimizer_of(self.case, wrapper.parameters())
        self.optimizer = optimizer if self.case.optimizer == "adam" else None
        if step.zero != "keep":
            optimizer.zero_grad(set_to_none=step.zero == "none")
        before = _state(wrapper)
        passes = tuple(self._passes(wrapper, index, step))
        if self.scaler is not None:
            self.scaler.step(optimizer)
            self.scaler.update()
        elif self.case.special != "in_backward":
            optimizer.step()
        scale = None if self.scaler is None else float(self.scaler.get_scale())
        return StepShown(before=before, passes=passes, after=_state(wrapper), scale=scale)

    def _passes(self, wrapper: Wrapper, index: int, step: Step) -> Iterator[PassShown]:
        for number, one in enumerate(step.passes):
            self.hook_elements = 0
            yield self._pass(wrapper, index, number, one)

    def _pass(self, wrapper: Wrapper, step: int, number: int, one: Pass) -> PassShown:
        with ExitStack() as whole:
            for _ in range({"no": 1, "nested": 2}.get(one.sync, 0)):
                whole.enter_context(wrapper.no_sync())
            if one.sync == "nested":
                with wrapper.no_sync():
                    pass  # leaving the inner context must not end the outer one
            with wrapper.no_sync() if one.sync == "forward_inside" else nullcontext():
                batches = [self._batch(step, number, forward) for forward in range(one.forwards)]
                uses = [one.uses[self.rank]] if one.uses else []
                outputs = [wrapper.run(batch, *uses) for batch in batches]
            loss = self._loss(self.case.steps[step], outputs, batches)
            with wrapper.no_sync() if one.sync == "backward_inside" else nullcontext():
                loss.backward()  # type: ignore[no-untyped-call]
            # unknown with scaled losses, or if optimizer steps happen inside backward
            gradients = None if self.case.special in ("scaled", "in_backward") else wrapper.gradients()
        return PassShown(
            gradients=None if gradients is None else {n: _array(g) for n, g in gradients.items()},
            outputs=tuple(Array.of(tensor) for tensor in tensors_in(outputs)),
            skeleton=skeleton_of(outputs),
            hook_elements=self.hook_elements,
        )

    def _batch(self, step: int, number: int, forward: int) -> Tensor:
        batch = batch_of(self.case, rank=self.rank, step=step, index=number, forward=forward)
        return batch.to(self.device)

    def _loss(self, step: Step, outputs: list[Any], batches: list[Tensor]) -> Tensor:
        loss = objective(self.case, outputs, batches)
        if step.overflow == self.rank:
            *_, last = tensors_in(outputs)
            loss = loss + math.inf * last.reshape(-1)[0]
        if step.late == self.rank:
            time.sleep(_LATE)
        return loss if self.scaler is None else self.scaler.scale(loss)

    # ------------------------------------------------------------------ hooks

    def _register(self, wrapper: Wrapper) -> None:
        match self.case.hook:
            case "":
                return
            case "user":
                # without annotations, which wrappers check against their own types
                wrapper.register_hook(self, lambda state, bucket: _doubled(wrapper, state, bucket))
            case "not_callable":
                wrapper.register_hook(None, "no hook")
            case "one_argument":
                wrapper.register_hook(None, _one_argument)
            case "annotated":
                wrapper.register_hook(None, _annotated)
            case "second":
                wrapper.register_hook(*wrapper.compression("none"))
                wrapper.register_hook(*wrapper.compression("none"))
            case kind:
                wrapper.register_hook(*wrapper.compression(kind))


def _doubled(wrapper: Wrapper, state: Any, bucket: Any) -> Any:
    """A user's hook that returns twice the mean and counts the elements it gets in its state."""
    buffer = wrapper.buffer_of(bucket)
    state.hook_elements += buffer.numel()
    buffer.mul_(2 / dist.get_world_size(state.group))
    work = dist.all_reduce(buffer, group=state.group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _one_argument(bucket: Any) -> Any:
    return bucket


def _annotated(state: object, bucket: int) -> Future[Tensor]:
    raise AssertionError("a hook with a wrong annotation was called")


def _state(wrapper: Wrapper) -> dict[str, Array]:
    return {name: Array.of(tensor) for name, tensor in wrapper.state().items()}


def _array(gradient: Tensor | None) -> Array | None:
    if gradient is None:
        return None
    return Array.of(gradient.to_dense() if gradient.is_sparse else gradient)
