"""The oracle: runs the full model over the same microbatches, without a pipeline.

It runs in its own process and shares no code with the reference implementation. Where several conventions are right,
it follows those that the adapter *declares*: where a mean is divided by m, and which inputs' gradients are scaled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import torch
from torch import Tensor, nn

from pipeconform import adapter as contract
from pipeconform.adapter import GradientScale, Microbatch, placed
from pipeconform.case.blocks import Compiled, SyncedNorm
from pipeconform.case.build import data
from pipeconform.case.build.graph_layers import deferred_weights
from pipeconform.case.build.mistakes import MistakeMaker, mistaken_batch
from pipeconform.case.build.modules import build_stage, tie
from pipeconform.case.build.whole import build_whole, cuts_are_known, whole_kwargs
from pipeconform.case.case import Adam, Case, Eval, Freeze, Load, Restart, Sgd, Train, Zero
from pipeconform.case.seeds import seed_of, seed_process
from pipeconform.observe.array import Array
from pipeconform.observe.gradients import tensors_of
from pipeconform.observe.observation import Named, Reference, StepExpected, Structure, arrays, named
from pipeconform.observe.recorder import hook_counts
from pipeconform.oracle.averaging import average, widen
from pipeconform.oracle.clipping import clip
from pipeconform.oracle.flow import OracleFlow
from pipeconform.oracle.kernels import Kernels
from pipeconform.oracle.masters import Masters
from pipeconform.oracle.mixed import Call, narrowed
from pipeconform.oracle.together import parts_of, taken_apart, together

if TYPE_CHECKING:
    from pipeconform.bounds.running_error import RunningError

__all__ = ["Bounds", "Question", "answer", "reference"]

Bounds = Literal["none", "reassociated", "running"]
"""The kind of bounds on the difference of two correct evaluations."""

Masks = dict[tuple[int, int, int], tuple[Array, ...]]
"""Dropout masks by (program step, stage, microbatch)."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the controller: a case, the declared scale, recorded masks, and whether to bound errors."""

    case: Case
    scale_at: str
    input_gradients_scaled: bool
    loss_over: Literal["microbatch", "batch"] = "microbatch"
    copied: bool = False
    masks: tuple[tuple[tuple[int, int, int], tuple[Array, ...]], ...] = ()
    bounds: Bounds = "none"
    flow: bool = False
    """Whether to record what passes between stages."""


_QUESTIONS = msgspec.msgpack.Decoder(Question)  # made once, in the fork server


class _Context(Protocol):
    """What the oracle knows about its process."""

    @property
    def device(self) -> str: ...


def answer(context: _Context, payload: bytes) -> bytes:
    """Answer a `Question` with a `Reference`, both as MessagePack (runs in the oracle's process)."""
    question = _QUESTIONS.decode(payload)
    return msgspec.msgpack.encode(
        reference(
            question.case,
            scale=GradientScale(
                at=question.scale_at,  # type: ignore[arg-type]  # the sender wrote a valid literal
                input_gradients_scaled=question.input_gradients_scaled,
            ),
            loss_over=question.loss_over,
            copied=question.copied,
            masks=dict(question.masks),
            bounds=question.bounds,
            flow=question.flow,
            device=context.device,
        )
    )


def where_bounds_are_computed(device: str) -> str:
    """`device`, or the CPU if `device` cannot compute in float64."""
    try:
        (torch.zeros(1, dtype=torch.float64, device=device) + 1).item()
    except (RuntimeError, TypeError):  # some devices' errors are of the one, some of the other kind
        return "cpu"
    return device


class _Replay:
    """Gives recorded dropout masks to the stages, and records nothing."""

    def __init__(self, masks: Masks, device: str) -> None:
        self._masks, self._device = masks, device
        self.at = (0, 0)
        self.flow: OracleFlow | None = None

    def exported(self, stage: int) -> None:
        """Do nothing: nothing is exported here."""

    def masks(self, stage: int) -> Sequence[Tensor]:
        step, microbatch = self.at
        recorded = self._masks.get((step, stage, microbatch), ())
        return [mask.tensor().to(self._device) for mask in recorded]

    def forward(
        self, stage: int, inputs: tuple[Any, ...], output: Any, masks: list[Tensor], *, training: bool
    ) -> None:
        """Record what passes between stages, if that is wanted; the oracle keeps its own values."""
        if self.flow is not None:
            self.flow.forward_ended(stage, inputs, output)


def reference(
    case: Case,
    *,
    scale: GradientScale,
    loss_over: Literal["microbatch", "batch"] = "microbatch",
    copied: bool = False,
    masks: Masks | None = None,
    bounds: Bounds = "none",
    flow: bool = False,
    device: str = "cpu",
) -> Reference:
    """Run the program of `case` on the full model; if there are several replicas, on each in turn.

    Their gradients are averaged after every training step, and each replica goes on with the mean.

    Microbatches are views of their batch, or `copied` from it as in many engines. Kernels may round differently if
    memory is aligned differently (seen: 2 ulp of a float32 linear map), so both are right.

    A mean over the merged output weights every sample equally (`loss_over` the batch), a mean of the microbatches'
    means every microbatch; they differ if microbatches differ in size.

    `bounds` adds elementwise bounds on the difference between two correct evaluations:
    ``reassociated`` allows another order of additions over microbatches, (m + 2)·ε·Σₖ|gₖ| from the
    per-microbatch gradients gₖ (Higham, "Accuracy and Stability of Numerical Algorithms", §4.2; ε twice
    the unit round-off); ``running`` allows any order of the same operations and evaluates everything
    under running error analysis.

    With `flow`, every step also has what passed between stages, bounded by running error analysis if that is on.

    Bounds are computed in float64: on the CPU, if `device` has none. They hold for every evaluation, the device's too.
    """

    def without_bounds() -> Reference:
        return reference(case, scale=scale, loss_over=loss_over, copied=copied, masks=masks, device=device)

    if bounds != "none":
        device = where_bounds_are_computed(device)
    seed_process(seed_of(case.seed, "oracle"), device=device)
    replay = _Replay(masks or {}, device)
    analysis = _analysis() if bounds == "running" else None
    joint = case.has(SyncedNorm) and case.world.num_replicas > 1
    # before the analysis begins: initial values are the same everywhere, however they were computed
    built = [_stages_of(case, replay, device) for _ in range(1 if joint else case.world.num_replicas)]
    with _uncompiled(case), analysis or nullcontext():
        runs = [
            _Run(
                case,
                scale,
                stages,
                replay,
                analysis,
                device,
                reassociated=bounds == "reassociated",
                by_samples=loss_over == "batch",
                copied=copied,
                replicas=tuple(range(case.world.num_replicas)) if joint else (d,),
            )
            for d, stages in enumerate(built)
        ]
        told = case.model.split is None or cuts_are_known(case)
        watched = flow and told and case.world.tensor is None and not joint
        for run in runs if watched else ():
            run.watch_flow()
        steps: list[list[StepExpected]] = [[] for _ in runs]
        try:
            for index in range(len(case.program)):
                ends = [run.step(index) for run in runs]
                if isinstance(case.program[index], Train):
                    absolute = average(runs)
                    for run in runs:
                        run.settle()
                    widen(runs, absolute)
                for own, end in zip(steps, ends, strict=True):
                    own.append(end())
        except Exception as error:
            if not case.is_mistaken or (bounds != "none" and without_bounds().failed is None):
                raise  # a model that does not fail without bounds is not what failed
            return Reference(steps=tuple(steps[0]), failed=f"{type(error).__name__}: {error}")
    if joint:
        steps = taken_apart(steps[0], num=case.world.num_replicas, dim=case.model.batch_dim)
    return Reference(steps=tuple(steps[0]), others=tuple(tuple(own) for own in steps[1:]))


def _stages_of(case: Case, replay: _Replay, device: str) -> list[nn.Module]:
    """The model's stages, with `replay` as their listener."""
    stages: list[nn.Module] = [placed(build_stage(case, s), device) for s in range(case.num_stages)]
    tie(case, stages)
    if case.model.split is not None:
        # what a front end makes of the model is its own affair: the whole model is one stage here
        stages = [placed(build_whole(case), device)]
    for stage in stages:
        stage.recorder = replay  # type: ignore[assignment]  # a listener, no tensor or module
    return stages


def _uncompiled(case: Case) -> AbstractContextManager[object]:
    """Run modules without compilation: the right values are those of the modules themselves."""
    return torch.compiler.set_stance("force_eager") if case.has(Compiled) else nullcontext()


def _analysis() -> RunningError:
    """Start running error analysis; imported here because most questions do not need it."""
    from pipeconform.bounds.running_error import RunningError

    return RunningError()


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


class _Run:
    """The full model of one replica, or of several together if they share statistics (see `oracle.together`).

    `by_samples`: a mean weights samples equally; otherwise it weights microbatches equally. `copied`: the inputs of a
    microbatch are copies of their part of the batch. `replicas` are those whose data is used.
    """

    def __init__(
        self,
        case: Case,
        scale: GradientScale,
        stages: list[nn.Module],
        replay: _Replay,
        analysis: RunningError | None,
        device: str,
        *,
        reassociated: bool,
        by_samples: bool,
        copied: bool,
        replicas: tuple[int, ...],
    ) -> None:
        self.by_samples, self.copied, self.replicas = by_samples, copied, replicas
        self.flow: OracleFlow | None = None
        """Records what passes between stages, if that is wanted."""
        self.magnitudes: dict[int, Tensor] | None = {} if reassociated else None
        self.case, self.scale, self.stages = case, scale, stages
        self.replay, self.analysis, self.device = replay, analysis, device
        self._kernels = Kernels(analysis, case, device=device)
        self._autocast = data.autocast_dtype(case)
        self.reassociation: dict[int, Tensor] = {}
        self.before: Sequence[Tensor | None] = ()
        self.divisor = self._num_microbatches = 1
        self.loss, self.mistakes = data.loss_of(case, last=lambda: stages[-1]), MistakeMaker(case)
        for s, stage in enumerate(stages):
            self.mistakes.attach(s, stage)
        self.parameters = list(dict.fromkeys(p for stage in stages for p in stage.parameters()))
        trainable = [p for p in self.parameters if p.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        self.masters: Masters | None = None
        if isinstance(case.optimizer, Sgd) and (case.optimizer.masters or case.optimizer.scaling is not None):
            rounding = nullcontext if analysis is None else analysis.rounding_once
            self.masters = Masters(trainable, case.optimizer, rounding=rounding)
        elif trainable and isinstance(case.optimizer, Sgd):
            self.optimizer = torch.optim.SGD(
                trainable, lr=case.optimizer.lr, momentum=case.optimizer.momentum
            )
        elif trainable and isinstance(case.optimizer, Adam):
            self.optimizer = torch.optim.Adam(trainable, lr=case.optimizer.lr)

    def watch_flow(self) -> None:
        """Record from now on what passes between stages."""
        self.flow = OracleFlow(self.analysis)
        self.flow.watch(self.stages, whole=self.case.model.split is not None)

    def step(self, index: int) -> Callable[[], StepExpected]:
        """Run one step of the program; calling the returned function records the values after it."""
        step, self.replay.flow = self.case.program[index], self.flow
        if isinstance(step, Train | Eval):
            live = dict(enumerate(self.stages))
            with data.autocast_in(self._autocast, device=self.device), self.mistakes.during(step, live):
                return self._batch(index, train=isinstance(step, Train))
        if isinstance(step, Zero | Restart):  # a training that goes on has all but its gradients
            for stage in self.stages:
                stage.zero_grad(set_to_none=isinstance(step, Restart) or step.set_to_none)
        elif isinstance(step, Load):
            with torch.no_grad():
                with self._aside():
                    loaded = {
                        s: {name: value.to(self.device) for name, value in own.items()}
                        for s, own in data.loaded_state(self.case, index).items()
                    }
                for s, values in loaded.items():
                    for name, value in contract.module_state({s: self.stages[s]})[s].items():
                        value.copy_(values[name])
            if self.masters is not None:
                self.masters.load()
        elif isinstance(step, Freeze):
            self.stages[step.stage].requires_grad_(not step.frozen)
        elif self.masters is not None:
            with self._aside():
                finite = all(p.grad is None or bool(p.grad.isfinite().all()) for p in self.parameters)
            self.masters.step(finite=finite)
        elif self.optimizer is not None:
            if isinstance(self.case.optimizer, Sgd) and self.case.optimizer.clip is not None:
                clip(self.parameters, self.case.optimizer.clip)
            self.optimizer.step()
        return functools.partial(self._expected, index)

    def _batch(self, index: int, *, train: bool) -> Callable[[], StepExpected]:
        with self._aside():
            batch = together(
                [data.make_batch(self.case, index, device=self.device, replica=d) for d in self.replicas]
            )
        step = self.case.program[index]
        if isinstance(step, Train) and step.mistake is not None:
            batch = mistaken_batch(batch, step.mistake)
            if len(batch.microbatches) < batch.num_microbatches:
                raise ValueError(
                    f"there are {len(batch.microbatches)} of {batch.num_microbatches} microbatches"
                )
        lose = self.mistakes.loss(self.loss.function) if train else self.loss.function
        for stage in self.stages:
            stage.train(train)
        m = batch.num_microbatches
        mean = self.loss.reduction == "mean"
        divide_loss = mean and self.scale.at == "loss"
        earlier = [p.grad for p in self.parameters]
        if train:
            for p in self.parameters:
                p.grad = None
        self._kernels.begin(
            num_microbatches=m,
            divisor=0 if self.by_samples else m if mean else 1,
            accumulates=any(one is not None for one in earlier),
        )
        outputs, losses, output_bounds = [], list[Tensor](), list[tuple[Array, ...]]()
        inputs: list[list[tuple[Structure, ...]]] = [[] for _ in self.stages]
        for k, micro in enumerate(batch.microbatches):
            self.replay.at = (index, k)
            if self.replay.flow is not None:
                self.replay.flow.at = k
            with torch.set_grad_enabled(train):
                values: Any = tuple(map(_copy, micro.args)) if self.copied else micro.args
                for s, stage in enumerate(self.stages):
                    args: Sequence[Any] = values if isinstance(values, tuple | list) else (values,)
                    with self._kernels.forward():
                        call, args, kwargs = self._call_of(stage, args, self._kwargs(micro, s))
                    with self._aside():
                        inputs[s].append(tuple(Structure.of(value) for value in args))
                    with self._kernels.forward():
                        values = call(*args, **kwargs)
                with self._aside():
                    outputs.append(Structure.of(values))
                    if self.analysis is not None:
                        output_bounds.append(
                            tuple(Array.of(self.analysis.bound(one)) for one in tensors_of(values))
                        )
                with self._kernels.loss():
                    each = [
                        lose(part, target, **batch.loss_kwargs)
                        for part, target in parts_of(
                            values, micro.target, num=len(self.replicas), dim=batch.batch_dim
                        )
                    ]
                losses += [loss.detach() for loss in each]
                if not train:
                    continue
                loss = each[0] if len(each) == 1 else torch.stack(each).sum() / len(each)
                if loss.requires_grad and divide_loss and self.by_samples:
                    dim = batch.batch_dim
                    loss = loss * (micro.target.shape[dim] / batch.target.shape[dim])
                    self._backward(loss, output=values)
                elif loss.requires_grad:
                    self._backward(loss / m if divide_loss else loss, output=values)
        if train:
            self.before, self.divisor = earlier, m if mean and self.scale.at == "gradient" else 1
            self._num_microbatches = m
        input_gradients = [arg.grad if isinstance(arg, Tensor) else None for arg in batch.args]
        kwarg_gradients = data.kwarg_gradients(batch, stages=range(self.case.num_stages))
        if mean and self.scale.at == "gradient" and self.scale.input_gradients_scaled:
            input_gradients = [None if g is None else g / m for g in input_gradients]
            kwarg_gradients = {
                s: {n: None if g is None else g / m for n, g in own.items()}
                for s, own in kwarg_gradients.items()
            }
        return functools.partial(
            self._expected,
            index,
            outputs=tuple(outputs),
            losses=losses,
            inputs=tuple(tuple(stage) for stage in inputs),
            input_gradients=input_gradients if train else [],
            kwarg_gradients=kwarg_gradients,
            output_bounds=tuple(output_bounds),
        )

    def _call_of(self, stage: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """What is called with which arguments: the stage, or all of it in another dtype."""
        return narrowed(stage, args, kwargs) if self.case.world.is_mixed else (stage, args, kwargs)

    def _kwargs(self, micro: Microbatch, stage: int) -> Mapping[str, Any]:
        """The keyword arguments of a stage; the whole model gets all of them."""
        return (
            whole_kwargs(micro.kwargs) if self.case.model.split is not None else micro.kwargs.get(stage, {})
        )

    def _aside(self) -> AbstractContextManager[object]:
        """A region in which values are recorded: not part of the computation, so the analysis is paused."""
        return nullcontext() if self.analysis is None else self.analysis.aside()

    def _differentiate(self, loss: Tensor, *, output: Any) -> None:
        """One backward through all stages, including deferred weight gradients."""
        self._kernels.backward(loss, output=output)
        for stage in self.stages:
            builder = deferred_weights(stage)
            if builder is not None:
                builder()()

    def _backward(self, loss: Tensor, *, output: Any) -> None:
        """Add one microbatch's gradients and, if bounds are wanted, their magnitudes."""
        if self.masters is not None and self.masters.scale is not None:
            loss = loss * self.masters.scale
        if self.magnitudes is None and not self._kernels.are_known:
            self._differentiate(loss, output=output)
            return
        sums = [p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        self._differentiate(loss, output=output)
        for i, (p, total) in enumerate(zip(self.parameters, sums, strict=True)):
            if p.grad is None:
                p.grad = total
                continue
            if self.magnitudes is not None:
                self.magnitudes[i] = self.magnitudes.get(i, torch.zeros_like(p)) + p.grad.abs()
            with self._kernels.sum():
                p.grad = p.grad if total is None else total + p.grad

    def _weigh(self) -> None:
        """Turn this step's magnitudes into bounds that hold for the accumulated gradients."""
        if self.magnitudes is None:
            return
        m = self._num_microbatches
        for i, (p, before) in enumerate(zip(self.parameters, self.before, strict=True)):
            if p.grad is None:
                continue
            weight = self.magnitudes.pop(i, torch.zeros_like(p)) / self.divisor
            if before is not None:
                weight = weight + before.abs()
            previous = self.reassociation.get(i, torch.zeros_like(p)) if before is not None else 0.0
            self.reassociation[i] = previous + (m + 2) * torch.finfo(p.dtype).eps * weight

    def settle(self) -> None:
        """End a training step after replicas have averaged what it contributed: scale it, add the earlier gradients."""
        with torch.no_grad():
            for p, before in zip(self.parameters, self.before, strict=True):
                if p.grad is not None and self.divisor != 1:
                    p.grad.div_(self.divisor)
                if before is not None:
                    p.grad = before if p.grad is None else before + p.grad
        self._weigh()

    def _expected(
        self,
        index: int,
        *,
        outputs: tuple[Structure, ...] = (),
        losses: Sequence[Tensor] = (),
        inputs: tuple[tuple[tuple[Structure, ...], ...], ...] = (),
        input_gradients: Sequence[Tensor | None] = (),
        kwarg_gradients: Mapping[int, Mapping[str, Tensor | None]] = MappingProxyType({}),
        output_bounds: tuple[tuple[Array, ...], ...] = (),
    ) -> StepExpected:
        with self._aside():
            return self._recorded(
                index,
                outputs=outputs,
                losses=losses,
                inputs=inputs,
                input_gradients=input_gradients,
                kwarg_gradients=kwarg_gradients,
                output_bounds=output_bounds,
            )

    def _recorded(
        self,
        index: int,
        *,
        outputs: tuple[Structure, ...],
        losses: Sequence[Tensor],
        inputs: tuple[tuple[tuple[Structure, ...], ...], ...],
        input_gradients: Sequence[Tensor | None],
        kwarg_gradients: Mapping[int, Mapping[str, Tensor | None]],
        output_bounds: tuple[tuple[Array, ...], ...],
    ) -> StepExpected:
        gradients = {
            s: {n: p.grad for n, p in stage.named_parameters()} for s, stage in enumerate(self.stages)
        }
        parameters = {s: dict(stage.named_parameters()) for s, stage in enumerate(self.stages)}
        buffers = {s: dict(stage.named_buffers()) for s, stage in enumerate(self.stages)}
        return StepExpected(
            step=index,
            outputs=outputs,
            losses=tuple(Array.of(loss) for loss in losses),
            inputs=inputs,
            input_gradients=arrays(input_gradients),
            kwarg_gradients={s: named(own) for s, own in kwarg_gradients.items()},
            gradients={s: named(values) for s, values in gradients.items()},
            parameters={s: named(values) for s, values in parameters.items()},
            buffers={s: named(values) for s, values in buffers.items()},
            hook_counts={s: counts for s, stage in enumerate(self.stages) if (counts := hook_counts(stage))},
            gradient_bounds=self._reassociated() or self._bounds(gradients),
            parameter_bounds=self._bounds(parameters),
            buffer_bounds=self._bounds(buffers),
            loss_bounds=tuple(Array.of(self.analysis.bound(loss)) for loss in losses)
            if self.analysis
            else (),
            input_gradient_bounds=self._bound_all(input_gradients),
            output_bounds=output_bounds,
            kwarg_gradient_bounds=self._bounds(kwarg_gradients),
            flow=() if self.flow is None else self.flow.take(),
            loss_scale=None if self.masters is None else self.masters.scale,
        )

    def _reassociated(self) -> dict[int, Named]:
        """Bounds by stage and name, from the magnitudes; empty if no bounds are wanted."""
        if self.magnitudes is None:
            return {}
        index = {id(p): i for i, p in enumerate(self.parameters)}
        return {
            s: named({name: self.reassociation.get(index[id(p)]) for name, p in stage.named_parameters()})
            for s, stage in enumerate(self.stages)
        }

    def _bounds(self, values: Mapping[int, Mapping[str, Tensor | None]]) -> dict[int, Named]:
        if self.analysis is None:
            return {}
        analysis = self.analysis
        return {
            s: named({n: None if v is None else analysis.bound(v) for n, v in own.items()})
            for s, own in values.items()
        }

    def _bound_all(self, values: Sequence[Tensor | None]) -> tuple[Array | None, ...]:
        if self.analysis is None:
            return ()
        return arrays([None if v is None else self.analysis.bound(v) for v in values])
