"""Judgements about wrapper cases: pure functions that compare what the ranks showed with the oracle's answer.

Values are compared within a bound, because a wrapper may use another memory layout and add up in another order. The
bound is the unit round-off of a value's dtype times a number of operations times the largest gradient of any replica;
modules compute in float64 wherever the case allows, so a wrong factor exceeds it by ten orders of magnitude.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from pipeconform.bounds.gauge import Gauge
from pipeconform.bounds.numerics import Mismatch, compare, magnitude
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.judge.finding import Finding
from pipeconform.observe.array import Array
from pipeconform.ranks.frames import chain_lines
from pipeconform.wrapper import WrapperClaims
from pipeconform.wrappers.groups import group_of
from pipeconform.wrappers.observation import Expected, Failure, PassExpected, PassShown, Shown

__all__ = [
    "MISUSE",
    "WrapperEvidence",
    "WrapperJudge",
    "differing",
    "failures",
    "hook_is_used",
    "is_right",
    "refused",
]

MISUSE = ("TypeError", "ValueError", "RuntimeError")
"""The exceptions with which a wrapper may refuse arguments."""
_ROUND_OFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_OPERATIONS = {"float64": 256, "float32": 256, "float16": 16, "bfloat16": 16}


@dataclass(frozen=True, kw_only=True)
class WrapperEvidence:
    """One execution in which every rank answered."""

    case: WrapperCase
    claims: WrapperClaims
    shown: tuple[Shown, ...]
    expected: Callable[[], Expected]
    """Asks the oracle; call it only if no rank failed."""
    earlier: WrapperEvidence | None = None
    """The evidence of the first world, which saved what this one loaded."""
    gauge: Gauge = field(default_factory=Gauge, compare=False)
    """Counts what is compared."""

    def compared(self, number: int = 1) -> None:
        """Count the values that a judgement compares, right or wrong."""
        self.gauge.count(number)


WrapperJudge = Callable[[WrapperEvidence], Iterator[Finding]]


def is_right(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Check that no rank failed, outputs, gradients, updates and buffers are right, and replicas are equal."""
    raised = list(failures(evidence))
    yield from raised
    if raised:
        return
    expected = evidence.expected()
    for findings in (
        _nothing_between(evidence, expected),
        _passes_are_right(evidence, expected),
        _states_are_right(evidence, expected),
        _replicas_are_equal(evidence, expected),
    ):
        found = list(findings)
        yield from found
        if found:
            return  # the consequences of a wrong gradient are not further defects


def hook_is_used(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Check that the user's hook gets every gradient once, with its state, and that its result is the gradient."""
    if any(True for _ in failures(evidence)):
        yield from is_right(evidence)
        return
    trained = evidence.expected().trained
    for shown in evidence.shown:
        for index, step in enumerate(shown.steps):
            for seen, one in zip(step.passes, evidence.case.steps[index].passes, strict=True):
                given, due = seen.hook_elements, trained if one.synchronises else 0
                evidence.compared()
                if given != due:
                    text = (
                        f"rank {shown.rank}: the hook was given {given} elements of gradients; expected {due}"
                    )
                    yield Finding(
                        kind="hook given other gradients", message=text, step=index, rank=shown.rank
                    )
                    return
    yield from is_right(evidence)


# ---------------------------------------------------------------------------------------------- parts


def failures(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A finding for every rank that raised or refused a claimed case."""
    for shown in evidence.shown:
        if shown.unsupported is not None:
            text = f"rank {shown.rank}: claimed, but refused: {shown.unsupported}"
            yield Finding(kind="claimed, but refused", message=text, rank=shown.rank)
        elif shown.failed is not None:
            what = shown.failed
            text = f"rank {shown.rank} raised {what.type} in {what.where}: {what.message.strip()}"
            frames = () if what.raised is None else what.raised.frames
            text = "\n".join([text, *(f"  {line}" for line in chain_lines(frames))])
            yield Finding(kind=f"raised {what.type}", message=text, rank=shown.rank)


def refused(
    evidence: WrapperEvidence, *, where: str, words: tuple[str, ...], types: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """A finding for every rank that did not raise, raised elsewhere, or whose message lacks one of the `words`."""
    for shown in evidence.shown:
        evidence.compared()
        failed = shown.failed
        if failed is None:
            text = f"rank {shown.rank} raised nothing; expected an error on every rank"
            yield Finding(kind="not refused everywhere", message=text, rank=shown.rank)
        else:
            yield from _badly_refused(shown.rank, failed, where=where, words=words, types=types)


def _badly_refused(
    rank: int, failed: Failure, *, where: str, words: tuple[str, ...], types: tuple[str, ...]
) -> Iterator[Finding]:
    told = f"rank {rank} raised {failed.type} in {failed.where}: {failed.message.strip()}"
    if re.search("connection|closed by|reset by peer|timed out|timeout", failed.message, re.IGNORECASE):
        yield Finding(kind="only an echo", message=f"{told}\nexpected: an error of its own", rank=rank)
    elif not re.search(where, failed.where):
        yield Finding(kind="refused late", message=f"{told}\nexpected: in {where}", rank=rank)
    elif types and failed.type not in types:
        text = f"{told}\nexpected: one of {', '.join(types)}"
        yield Finding(kind="refused with another error", message=text, rank=rank)
    else:
        lacking = [one for one in words if not re.search(one, failed.message, re.IGNORECASE | re.DOTALL)]
        if lacking:
            text = f"{told}\nexpected in its message: {' and '.join(lacking)}"
            yield Finding(kind="unclear refusal", message=text, rank=rank)


def differing(
    evidence: WrapperEvidence,
    right: Mapping[str, Array],
    shown: Mapping[str, Array],
    *,
    bound: Callable[[Array], Array | None] = lambda value: None,
) -> Iterator[tuple[str, Mismatch]]:
    """The values by name that differ from `right`, bit for bit or beyond their bounds, and how they differ."""
    evidence.compared(len(right))
    for name, value in right.items():
        mismatch = compare(value, shown.get(name), bound=bound(value))
        if mismatch is not None:
            yield name, mismatch


def _nothing_between(evidence: WrapperEvidence, expected: Expected) -> Iterator[Finding]:
    """Check that wrapping does not change equal replicas or ignored values, and that nothing changes between steps."""
    for shown in evidence.shown:
        ignored = evidence.case.options.ignored
        built = {
            name: value
            for name, value in expected.initial[shown.rank].items()
            if name in ignored or not (evidence.case.own_values or evidence.claims.sharded)
        }
        built = {} if evidence.earlier is not None else built  # another judgement compares loaded states
        states = [(built, shown.initial, "when it is wrapped")]
        afters = [shown.initial, *(step.after for step in shown.steps)]
        for index, (after, step) in enumerate(zip(afters, shown.steps, strict=False)):
            states.append((after, step.before, f"before step {index}"))
        for due, found, when in states:
            for name, mismatch in differing(evidence, due, found):
                text = f"rank {shown.rank}: {name} changes {when}\n{mismatch.describe()}"
                yield Finding(kind="state changed by nobody", message=text, rank=shown.rank)
                return


def _passes_are_right(evidence: WrapperEvidence, expected: Expected) -> Iterator[Finding]:
    for rank, shown in enumerate(evidence.shown):
        for index, step in enumerate(shown.steps):
            for number, (one, due) in enumerate(zip(step.passes, expected.steps[index], strict=True)):
                yield from _pass_is_right(evidence, rank, index, number, one, due)


def _states_are_right(evidence: WrapperEvidence, expected: Expected) -> Iterator[Finding]:
    for rank, shown in enumerate(evidence.shown):
        for index, step in enumerate(shown.steps):
            scale = max(due.scale for due in expected.steps[index])
            yield from _state_is_right(evidence, rank, index, expected.after[index][rank], step.after, scale)


def _pass_is_right(
    evidence: WrapperEvidence, rank: int, step: int, number: int, one: PassShown, due: PassExpected
) -> Iterator[Finding]:
    case = evidence.case
    where = f"rank {rank}, step {step}, pass {number} ({case.steps[step].passes[number].sync})"
    if one.skeleton != due.skeleton:
        text = f"{where}: the output is {one.skeleton}\nexpected {due.skeleton}"
        yield Finding(kind="output in another container", message=text, step=step, rank=rank)
        return
    for index, (value, right) in enumerate(zip(one.outputs, due.outputs[rank], strict=True)):
        evidence.compared()
        mismatch = compare(right, value, bound=_bound(right, 1.0 + _most(right)))
        if mismatch is not None:
            text = f"{where}: output {index}\n{mismatch.describe()}"
            yield Finding(kind="output differs", message=text, step=step, rank=rank, mismatch=mismatch)
            return
    if one.gradients is None:
        return
    evidence.compared(len(due.gradients[rank]))
    for name, gradient in due.gradients[rank].items():
        shown = one.gradients.get(name)
        if gradient is None and shown is not None and not any(shown.data):
            continue  # zeros count as no gradient
        if shown is None and gradient is not None and not any(gradient.data):
            continue
        bound = None if gradient is None else _bound(gradient, due.scale, coarse=_coarse(case))
        mismatch = compare(gradient, shown, bound=bound)
        if mismatch is not None:
            text = f"{where}: gradient of {name}\n{mismatch.describe()}"
            yield Finding(kind="gradient differs", message=text, step=step, rank=rank, mismatch=mismatch)
            return


def _state_is_right(
    evidence: WrapperEvidence,
    rank: int,
    step: int,
    right: Mapping[str, Array],
    shown: Mapping[str, Array],
    scale: float,
) -> Iterator[Finding]:
    def bound(value: Array) -> Array | None:
        return _bound(value, scale + 1.0 + _most(value), coarse=_coarse(evidence.case))

    for name, mismatch in differing(evidence, right, shown, bound=bound):
        text = f"rank {rank}, after step {step}: {name}\n{mismatch.describe()}"
        yield Finding(kind="state differs", message=text, step=step, rank=rank, mismatch=mismatch)
        return


def _replicas_are_equal(evidence: WrapperEvidence, expected: Expected) -> Iterator[Finding]:
    """Check that parameters are bit-equal on every rank that ran a step, and after ``join`` on all ranks."""
    case = evidence.case
    for index in range(len(expected.steps)):
        states = {rank: evidence.shown[rank].steps[index].after for rank in case.present(index)}
        yield from _equal(evidence, expected, states, f"after step {index}", index)
    if case.uneven is not None:
        finals = {shown.rank: shown.final for shown in evidence.shown}
        yield from _equal(evidence, expected, finals, "after join", None)


def _equal(
    evidence: WrapperEvidence,
    expected: Expected,
    states: Mapping[int, Mapping[str, Array]],
    when: str,
    step: int | None,
) -> Iterator[Finding]:
    first = min(states)
    for rank, state in states.items():
        for name in expected.parameters:
            if first not in group_of(evidence.case, name, rank):
                continue
            evidence.compared()
            mismatch = compare(states[first][name], state[name])
            if mismatch is not None:
                text = f"{when}, {name} on rank {rank} is not that of rank {first}\n{mismatch.describe()}"
                yield Finding(kind="replicas apart", message=text, step=step, rank=rank, mismatch=mismatch)
                return


def _most(array: Array) -> float:
    return magnitude([array]) if array.dtype in _ROUND_OFF else 0.0


def _coarse(case: WrapperCase) -> str:
    """The coarsest dtype, besides their own, through which values of a case pass."""
    options = case.options
    named = (case.hook, options.param_dtype, options.reduce_dtype, options.buffer_dtype)
    return max((one or "" for one in named), key=_round_off)


def _round_off(dtype: str) -> float:
    return _ROUND_OFF.get(dtype, 0.0)


def _bound(right: Array, scale: float, *, coarse: str = "") -> Array | None:
    """The largest allowed difference of every element; None if bits must be equal."""
    if right.dtype not in _ROUND_OFF:
        return None
    dtype = max(coarse, right.dtype, key=_round_off)
    most = _ROUND_OFF[dtype] * _OPERATIONS[dtype] * scale
    return Array("float64", right.shape, np.full(right.shape, most).tobytes())
