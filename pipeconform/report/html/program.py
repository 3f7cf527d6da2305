"""The program of a case as a strip of steps, and the most important facts about the case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeconform.case.case import Case, Eval, Model, Train
from pipeconform.report.case_text import (
    describe_cut,
    describe_perturbation,
    describe_program,
    describe_replicas,
    optimizer_text,
)
from pipeconform.report.html.place import Place, kind_of

__all__ = ["Part", "StepView", "boundary_words", "facts_of", "steps_of"]

_MOST_STEPS = 12
_MOST_PARTS = 16


@dataclass(frozen=True, kw_only=True)
class Part:
    """One microbatch of a step."""

    number: int
    bad: bool


@dataclass(frozen=True, kw_only=True)
class StepView:
    """One step of a program."""

    number: str
    name: str
    size: str
    """``B = 4, m = 2`` for a step that runs the pipeline."""
    parts: tuple[Part, ...]
    """Its microbatches; empty if there are too many to show."""
    bad: bool


def steps_of(case: Case, place: Place) -> tuple[StepView, ...]:
    """The steps in order; a long program becomes one entry in words."""
    if len(case.program) > _MOST_STEPS:
        words = describe_program(case.program)
        at = "" if place.step is None else f"; step {place.step} is at fault"
        return (StepView(number="", name=words + at, size="", parts=(), bad=False),)
    return tuple(_steps(case, place))


def _steps(case: Case, place: Place) -> Iterator[StepView]:
    for number, step in enumerate(case.program):
        bad = number == place.step
        size = ""
        parts: tuple[Part, ...] = ()
        if isinstance(step, Train | Eval):
            m = step.num_microbatches
            size = f"B = {step.batch_size}, m = {m}"
            if m <= _MOST_PARTS:
                parts = tuple(Part(number=k, bad=bad and k == place.microbatch) for k in range(m))
        yield StepView(number=str(number), name=kind_of(step), size=size, parts=parts, bad=bad)


def boundary_words(model: Model, *, rows: str) -> str:
    """The tensors that a microbatch of `rows` samples passes from stage to stage: ``[2, 3, 1] float64``."""
    sizes = [rows, *([str(model.sequence)] if model.sequence else [])]
    shape = ", ".join([*(reversed(sizes) if model.batch_dim else sizes), str(model.width)])
    words = f"[{shape}] {model.dtype}"
    if model.carried:
        return f"{words} with {', '.join(model.carried)}, in a {model.container}"
    return words if model.container == "tensor" else f"{words}, in a {model.container}"


def facts_of(case: Case) -> tuple[tuple[str, str], ...]:
    """Names and values, the most important first, without defaults."""
    return tuple(_facts(case))


def _facts(case: Case) -> Iterator[tuple[str, str]]:
    model, world = case.model, case.world
    yield "ranks p", str(case.num_ranks)
    yield "stages per rank v", str(case.stages_per_rank)
    yield "microbatches m", ", ".join(dict.fromkeys(str(run.num_microbatches) for run in case.runs))
    yield "schedule", case.schedule
    sizes = {(run.batch_size, run.num_microbatches) for run in case.runs}
    even = all(batch % m == 0 for batch, m in sizes)
    rows = {str(batch // m) for batch, m in sizes} if even else set()
    yield "boundary", boundary_words(model, rows=rows.pop() if len(rows) == 1 else "b")
    if world.size != case.num_ranks:
        ranks = ", ".join(map(str, world.pipeline_ranks))
        yield "world", f"{world.size} processes, the pipeline on rank {ranks}"
    if world.replicas is not None:
        yield "replicas", describe_replicas(world)
    if world.tensor is not None:
        yield "cut", describe_cut(world)
    if model.tokens:
        yield "inputs", "tokens"
    if model.input_requires_grad:
        yield "inputs", "require grad"
    if model.merged:
        yield "further outputs", ", ".join(model.merged)
    if model.output != "tensor":
        yield "output", {"tuple1": "in a 1-tuple"}.get(model.output, f"in a {model.output}")
    classes = f", {model.classes} classes" if model.classes else ""
    ignoring = ", some targets ignored" if case.loss.ignore else ""
    ignoring += ", divided by the number of the others" if case.loss.counted else ""
    scaled = ", with a keyword argument" if case.loss.scaled else ""
    scaled += ", halves its target in place" if case.loss.in_place else ""
    yield "loss", f"{case.loss.reduction} {case.loss.kind.replace('_', ' ')}{classes}{ignoring}{scaled}"
    if case.optimizer is not None:
        yield "optimizer", optimizer_text(case.optimizer)
    for one in world.perturbations:
        yield "perturbed", describe_perturbation(one)
    yield "seed", str(case.seed)
