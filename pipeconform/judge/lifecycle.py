"""What evaluation changes, which names states have, and whether executions repeat."""

from __future__ import annotations

from collections.abc import Iterator, Set

from pipeconform.bounds.gauge import Gauge
from pipeconform.bounds.numerics import compare
from pipeconform.case.case import Eval
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.observe.observation import Named, Observation, StepExpected

__all__ = [
    "names_of_state",
    "repeats_exactly",
    "traces_of_evaluation",
    "traces_of_evaluations",
]


def names_of_state(evidence: Evidence, one: Observation, expected: StepExpected) -> Iterator[Finding]:
    """Names that a rank's state lacks, or has although they do not belong there."""
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


def traces_of_evaluations(evidence: Evidence) -> Iterator[Finding]:
    """The traces of every evaluation on every rank."""
    for expected in evidence.runs(Eval):
        for one in evidence.members:
            yield from traces_of_evaluation(evidence, one, expected.step)


def traces_of_evaluation(evidence: Evidence, one: Observation, step: int) -> Iterator[Finding]:
    """What evaluation changed on one rank, and modules that it left in training mode.

    Before the first step, a rank has the values with which the model was built, and no gradients.
    """
    shown = shown_step(one, step)
    before = shown_step(one, step - 1) if step else None
    built = evidence.expected.steps[step]
    for what in ("gradients", "buffers", "parameters"):
        now: dict[int, Named] = getattr(shown, what)
        then: dict[int, Named] = getattr(before, what) if before is not None else {}
        for s in {**then, **now}:
            values = now.get(s, {})
            for name in {**then.get(s, {}), **values}:
                evidence.compared()
                value = values.get(name)
                old = then.get(s, {}).get(name)
                if before is not None:
                    changed = value != old
                elif what == "gradients":
                    # before training, a gradient is absent or, in engines with fixed buffers, zero
                    changed = value is not None and any(value.data)
                else:
                    right: dict[int, Named] = getattr(built, what)
                    old = right.get(s, {}).get(name)
                    # absent and foreign names are judged by LIF-4; a rank shows only its part of what is sharded
                    whole = name not in shown.parameter_shards.get(s, {})
                    changed = whole and old is not None and value != old
                if changed:
                    noun = what.removesuffix("s")
                    # what is gone and what is another value have different causes: each must be seen beside the other
                    kind = f"evaluation {'removed' if value is None else 'changed'} a {noun}"
                    how = "gone" if value is None else "not what it was before"
                    mismatch = None if value is None or old is None else compare(old, value)
                    text = f"after evaluation the {noun} of {name} is {how}"
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
