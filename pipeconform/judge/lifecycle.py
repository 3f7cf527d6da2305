"""Judgements of chapter LIF: orders of steps, determinism, building."""

from __future__ import annotations

from collections.abc import Iterator, Set

from pipeconform.case.case import Eval
from pipeconform.judge import forward, training
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.gauge import Gauge
from pipeconform.judge.numerics import compare
from pipeconform.observe.observation import Named, Observation, StepExpected

__all__ = [
    "any_order_is_right",
    "building_changes_nothing",
    "evaluation_differentiates_nothing",
    "nothing_by_itself",
    "repeats_exactly",
    "state_is_the_whole_models",
]


def any_order_is_right(evidence: Evidence) -> Iterator[Finding]:
    """Whatever the order of training and evaluation, values are right and evaluation leaves no trace."""
    yield from forward.outputs_are_right(evidence)
    yield from training.losses_and_gradients_are_right(evidence)
    for expected in evidence.runs(Eval):
        for one in evidence.members:
            yield from _traces(evidence, one, expected.step)
        for one in evidence.members:
            if shown_step(one, expected.step).rng_moved:
                yield Finding(
                    kind="evaluation consumed random numbers",
                    message="evaluation moved the process's random state; the model draws nothing there",
                    step=expected.step,
                    rank=one.rank,
                )


def evaluation_differentiates_nothing(evidence: Evidence) -> Iterator[Finding]:
    """No forward of an evaluation records a graph, no result of it needs a gradient, and values are right."""
    for expected in evidence.runs(Eval):
        for one in evidence.members:
            shown = shown_step(one, expected.step)
            evidence.compared(len(shown.forwards))
            call = next((call for call in shown.forwards if call.grad_enabled), None)
            if call is not None:
                text = f"stage {call.stage} was evaluated with gradients switched on"
                yield Finding(
                    kind="evaluation records a graph",
                    message=text,
                    step=expected.step,
                    rank=one.rank,
                    stage=call.stage,
                )
            if shown.differentiable:
                text = f"what the evaluation returned on rank {one.rank} requires a gradient"
                yield Finding(
                    kind="evaluation result requires grad", message=text, step=expected.step, rank=one.rank
                )
    yield from forward.outputs_are_right(evidence)
    yield from training.gradients_are_right(evidence)


def state_is_the_whole_models(evidence: Evidence) -> Iterator[Finding]:
    """All stages' states together name every parameter and buffer once; what was loaded is what is there."""
    for expected in evidence.expected.steps:
        for one in evidence.members:
            yield from _names(evidence, one, expected)
    yield from training.state_is_right(evidence)
    yield from forward.outputs_are_right(evidence)
    yield from training.gradients_are_right(evidence)


def _names(evidence: Evidence, one: Observation, expected: StepExpected) -> Iterator[Finding]:
    """What a rank's state lacks, or holds although it does not belong there."""
    shown = shown_step(one, expected.step)
    held = {s: {**values, **shown.buffers.get(s, {})}.keys() for s, values in shown.parameters.items()}
    for s in range(evidence.case.num_stages):
        owned = one.pipeline_rank in evidence.placement[s]
        right = {**expected.parameters[s], **expected.buffers[s]}.keys() if owned else set()
        names: Set[str] = held.get(s, set())
        evidence.compared(len(right | names))
        for kind, wrong in (
            ("state lacks a name", right - names),
            ("state has a strange name", names - right),
        ):
            if wrong:
                text = (
                    f"the state of stage {s} on rank {one.rank}: {kind.removeprefix('state ')}: {min(wrong)}"
                )
                yield Finding(kind=kind, message=text, step=expected.step, rank=one.rank, stage=s)


def nothing_by_itself(evidence: Evidence) -> Iterator[Finding]:
    """Determinism shows only when executions are compared; see `repeats_exactly`."""
    yield from ()


def _traces(evidence: Evidence, one: Observation, step: int) -> Iterator[Finding]:
    """What evaluation changed on one rank, against what the rank had before it; modules in training mode."""
    shown = shown_step(one, step)
    before = shown_step(one, step - 1) if step else None
    for what in ("gradients", "buffers", "parameters"):
        now: dict[int, Named] = getattr(shown, what)
        then: dict[int, Named] = getattr(before, what) if before is not None else {}
        for s in {**then, **now}:
            values = now.get(s, {})
            for name in {**then.get(s, {}), **values}:
                evidence.compared()
                value = values.get(name)
                if before is None:
                    # nothing was trained: a gradient is absent or, in engines with fixed buffers, zero
                    changed = what == "gradients" and value is not None and any(value.data)
                else:
                    changed = value != then.get(s, {}).get(name)
                if changed:
                    kind = f"evaluation changed a {what.removesuffix('s')}"
                    old = None if before is None else then.get(s, {}).get(name)
                    mismatch = None if value is None or old is None else compare(old, value)
                    text = f"after evaluation the {what.removesuffix('s')} of {name} is not what it was"
                    text += "" if mismatch is None else f"\n{mismatch.describe()}"
                    yield Finding(
                        kind=kind, message=text, step=step, rank=one.rank, stage=s, mismatch=mismatch
                    )
                    break
    for call in shown.forwards:
        evidence.compared()
        if call.training:
            text = f"stage {call.stage} was evaluated with modules in training mode"
            yield Finding(
                kind="evaluation in training mode", message=text, step=step, rank=one.rank, stage=call.stage
            )
            break


_RESULTS = (
    "output",
    "losses",
    "loss",
    "input_gradients",
    "gradients",
    "buffers",
    "parameters",
    "hook_counts",
    "rng_moved",
)
"""What must repeat. Forwards need not: a dry run on uninitialised memory sees other values every time."""


def repeats_exactly(
    first: tuple[Observation, ...], second: tuple[Observation, ...], how: str, *, gauge: Gauge
) -> Iterator[Finding]:
    """Two executions of one case show the same bits."""
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one.steps, other.steps, strict=True):
            gauge.count()
            parts = [name for name in _RESULTS if getattr(a, name) != getattr(b, name)]
            if parts:
                yield Finding(
                    kind=f"not repeated {how}",
                    message=f"the same case gave other {', '.join(parts)} {how}",
                    step=a.step,
                    rank=one.rank,
                )
                break


def building_changes_nothing(evidence: Evidence) -> Iterator[Finding]:
    """Building leaves parameters, buffers, random state, gradient flags, modes and hooks alone."""
    for one in evidence.members:
        evidence.compared()
        for change in one.build_changes:
            kind = "build moved the random state" if "random" in change else "build changed a module"
            yield Finding(kind=kind, message=f"building changed something: {change}", rank=one.rank)
