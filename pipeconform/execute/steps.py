"""Runs one step of a case's program on this rank, and records what it showed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from msgspec import structs

from pipeconform import adapter as contract
from pipeconform.adapter import Batch, Microbatch, Mode, StepResult
from pipeconform.case.build import data, foreign
from pipeconform.case.build.mistakes import mistaken_batch
from pipeconform.case.case import Eval, Freeze, Load, Restart, Step, Train, Zero
from pipeconform.execute import by_hand
from pipeconform.execute.answers import CheckedPipeline
from pipeconform.execute.placed_batch import placed_batch
from pipeconform.execute.randomness import moved, random_state
from pipeconform.execute.running import Running
from pipeconform.observe.array import Array
from pipeconform.observe.observation import (
    Answered,
    Named,
    Sharding,
    StepShown,
    Structure,
    arrays,
    named,
)
from pipeconform.observe.recorder import hook_counts
from pipeconform.observe.shards import local_parts, sharding_of

__all__ = ["run_step"]


def _data_for(running: Running, index: int) -> Batch:
    """The batch, with decoys instead of the values that this rank does not consume."""
    plan, capabilities = running.plan, running.capabilities
    return foreign.batch_for(
        running.case,
        index,
        owned=plan.owned_stages(),
        position=plan.ranks.pipeline_rank,
        inputs=capabilities.inputs_consumed_by,
        targets=capabilities.targets_consumed_by,
        kwargs=capabilities.kwargs_scope,
        device=plan.ranks.device,
        replica=plan.ranks.replica,
    )


def _out_of(source: Iterator[Microbatch], batch: Batch) -> Batch:
    """The batch as a step gets it that takes its microbatches from a source."""
    empty: dict[str, Any] = {"args": (), "kwargs": {}, "target": None, "microbatches": (), "kwarg_rules": {}}
    return replace(batch, source=source, **empty)


def run_step(running: Running, index: int) -> StepShown:
    """Run step `index` of the program and return everything that can be seen of it on this rank."""
    case, plan, pipeline, recorder = running.case, running.plan, running.pipeline, running.recorder
    step = case.program[index]
    result, answers, batch = StepResult(), tuple[Answered, ...](), None
    rng = random_state(plan.ranks.device)
    if isinstance(step, Train | Eval):
        batch = _data_for(running, index)
        if step.from_source:
            each = functools.partial(_data_for, running)
            batch = _out_of(running.sources.at(case, index, each), batch)
        elif isinstance(step, Train) and step.mistake is not None:
            batch = mistaken_batch(batch, step.mistake)
        if plan.tensor_parallel is not None and plan.tensor_parallel.batch is not None:
            assert case.world.tensor is not None
            assert plan.ranks.mesh is not None
            batch = placed_batch(batch, case.world.tensor, plan.ranks.mesh)
        if isinstance(step, Train):
            batch = replace(batch, returns_outputs=running.returns_outputs)
        with data.autocast_in(plan.autocast, device=plan.ranks.device), _guard(step):
            if isinstance(step, Train) and step.by_hand is not None:
                answers = by_hand.drive(pipeline, plan, batch, step.by_hand)
            else:
                result = pipeline.run(Mode.TRAIN if isinstance(step, Train) else Mode.EVAL, batch)
    elif isinstance(step, Zero):
        pipeline.apply(contract.ZeroGrad(step.set_to_none))
    elif isinstance(step, Load):
        loaded = foreign.state_for(case, index, owned=plan.owned_stages(), position=plan.ranks.pipeline_rank)
        pipeline.apply(contract.LoadState(loaded))
    elif isinstance(step, Restart):
        running.restart()
        recorder.forget()  # what building the other pipeline ran
    elif isinstance(step, Freeze):
        module = pipeline.owned().get(step.stage)
        if module is not None:
            module.requires_grad_(not step.frozen)
    else:
        pipeline.apply(contract.OptimizerStep())
    rng_moved = moved(rng, plan.ranks.device)
    state, owned = pipeline.state(), pipeline.owned()
    names = {s: running.initials.parameter_names(s) for s in owned}
    kwarg_gradients = {} if batch is None else data.kwarg_gradients(batch, stages=owned)
    gradients = pipeline.gradients()
    shown = StepShown(
        step=index,
        answers=answers,
        microbatches=None if result.microbatches is None else tuple(result.microbatches),
        output=None if result.output is None else Structure.of(result.output),
        losses=None if result.losses is None else tuple(Array.of(loss) for loss in result.losses),
        loss=None if result.loss is None else Array.of(result.loss),
        input_gradients=None if result.input_gradients is None else arrays(result.input_gradients),
        kwarg_gradients={s: named(own) for s, own in kwarg_gradients.items()},
        gradients={s: named(local_parts(values)) for s, values in gradients.items()},
        gradient_shards=_cut(gradients),
        parameter_shards=_cut(state),
        parameters={s: _part(values, names.get(s, frozenset()), inside=True) for s, values in state.items()},
        buffers={s: _part(values, names.get(s, frozenset()), inside=False) for s, values in state.items()},
        forwards=recorder.take(),
        begun=recorder.begun(),
        events=recorder.events(),
        flow=recorder.flow(),
        hook_counts={s: counts for s, module in owned.items() if (counts := hook_counts(module))},
        rng_moved=rng_moved,
        # replicas are not asked: their answer would add communication to what is recorded
        gradient_norm=None if case.world.is_parallel else _norm(step, pipeline, running.capabilities),
        loss_scale=None if plan.loss_scaling is None else pipeline.loss_scale(),
        differentiable=_differentiable((result.output, result.losses, result.loss)),
    )
    del result  # a user may keep results with a graph; whatever else stays is kept by the implementation
    return structs.replace(shown, held=recorder.held(), kept=recorder.kept())


def _norm(step: Step, pipeline: CheckedPipeline, capabilities: contract.Capabilities) -> Array | None:
    """The implementation's norm of all gradients, after a training step."""
    # in a mistaken step another rank may have failed, and could not take part in a sum
    asked = isinstance(step, Train) and step.mistake is None
    asked = asked and contract.Feature.GRADIENT_NORM in capabilities.features
    found = pipeline.gradient_norm() if asked else None
    return None if found is None else Array.of(found)


def _differentiable(value: Any) -> bool:
    """Whether any tensor in a result requires a gradient."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if isinstance(value, Mapping):
        return any(_differentiable(item) for item in value.values())
    return isinstance(value, tuple | list) and any(_differentiable(item) for item in value)


def _guard(step: Train | Eval) -> AbstractContextManager[object]:
    """The gradient mode that the caller sets around an evaluation, or by mistake around a training step."""
    mistake = step.mistake if isinstance(step, Train) else None
    match step.guard if isinstance(step, Eval) else mistake and mistake.how:
        case "no_grad":
            return torch.no_grad()
        case "inference_mode":
            return torch.inference_mode()
    return nullcontext()


def _part(values: Mapping[str, Any], parameters: frozenset[str], *, inside: bool) -> Named:
    return named(
        local_parts({name: value for name, value in values.items() if (name in parameters) is inside})
    )


def _cut(values: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Sharding]]:
    """How the values are cut of which this rank has a part; other stages are left out."""
    found = {s: sharding_of(own) for s, own in values.items()}
    return {s: own for s, own in found.items() if own}
