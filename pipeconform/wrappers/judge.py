"""Judgements about wrapper cases: pure functions that compare what the ranks showed with the oracle's answer.

Values are compared bit for bit first. A wrapper may add up replicas, buckets and passes in another order, and use
another memory layout, so where bits differ the oracle runs again under running error analysis: the difference must be
within what it then computes for every element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pipeconform.bounds.gauge import Gauge
from pipeconform.bounds.numerics import Mismatch, compare, measure, tells_from_zero
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
    "differs",
    "failures",
    "hook_is_used",
    "is_right",
    "refused",
]

MISUSE = ("TypeError", "ValueError", "RuntimeError")
"""The exceptions with which a wrapper may refuse arguments."""
Bound = Callable[[], Array | None]
"""Finds the bound of one value, which costs another run of the oracle; None if bits must be equal."""


@dataclass(frozen=True, kw_only=True)
class WrapperEvidence:
    """One execution in which every rank answered."""

    case: WrapperCase
    claims: WrapperClaims
    shown: tuple[Shown, ...]
    expected: Callable[[], Expected]
    """Asks the oracle; call it only if no rank failed."""
    bounded: Callable[[], Expected]
    """Asks it with the bounds of all values."""
    unbroken: Callable[[], Expected]
    """Asks it for a training without a break from the initial values, with bounds."""
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
    elif types and not failed.is_one_of(types):
        text = f"{told}\nexpected: one of {', '.join(types)}"
        yield Finding(kind="refused with another error", message=text, rank=rank)
    else:
        lacking = [one for one in words if not re.search(one, failed.message, re.IGNORECASE | re.DOTALL)]
        if lacking:
            text = f"{told}\nexpected in its message: {' and '.join(lacking)}"
            yield Finding(kind="unclear refusal", message=text, rank=rank)


def differs(
    evidence: WrapperEvidence, right: Array | None, shown: Array | None, *, bound: Bound | None = None
) -> Mismatch | None:
    """How one value differs from `right`: bit for bit and, if it does and may, beyond its bound.

    What zeros would have passed, too, because its bound is as large as the value, does not count as compared.
    """
    found = compare(right, shown)
    if right is None or found is None or found.kind != "value" or bound is None or (known := bound()) is None:
        evidence.compared()
        return found
    found, most = measure(right, shown, bound=known)
    if found is None:
        evidence.gauge.note(most)
    if found is not None or tells_from_zero(right, known):
        evidence.compared()
    return found


def differing(
    evidence: WrapperEvidence,
    right: Mapping[str, Array],
    shown: Mapping[str, Array],
    *,
    bounds: Callable[[], Mapping[str, Array]] = dict,
) -> Iterator[tuple[str, Mismatch]]:
    """The values by name that differ from `right`, bit for bit or beyond their bounds, and how they differ."""
    for name, value in right.items():

        def bound(name: str = name) -> Array | None:
            return bounds().get(name)

        mismatch = differs(evidence, value, shown.get(name), bound=bound)
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
            yield from _state_is_right(evidence, rank, index, expected.after[index][rank], step.after)


def _pass_is_right(
    evidence: WrapperEvidence, rank: int, step: int, number: int, one: PassShown, due: PassExpected
) -> Iterator[Finding]:
    where = f"rank {rank}, step {step}, pass {number} ({evidence.case.steps[step].passes[number].sync})"

    def bounds() -> PassExpected:
        return evidence.bounded().steps[step][number]

    if one.skeleton != due.skeleton:
        text = f"{where}: the output is {one.skeleton}\nexpected {due.skeleton}"
        yield Finding(kind="output in another container", message=text, step=step, rank=rank)
        return
    for index, (value, right) in enumerate(zip(one.outputs, due.outputs[rank], strict=True)):

        def output_bound(index: int = index) -> Array:
            return bounds().output_bounds[rank][index]

        mismatch = differs(evidence, right, value, bound=output_bound)
        if mismatch is not None:
            text = f"{where}: output {index}\n{mismatch.describe()}"
            yield Finding(kind="output differs", message=text, step=step, rank=rank, mismatch=mismatch)
            return
    if one.gradients is None:
        return
    for name, gradient in due.gradients[rank].items():
        shown = one.gradients.get(name)
        if (gradient is None or shown is None) and _is_zero(gradient) and _is_zero(shown):
            evidence.compared()
            continue  # zeros count as no gradient

        def bound(name: str = name) -> Array | None:
            return bounds().gradient_bounds[rank].get(name)

        mismatch = differs(evidence, gradient, shown, bound=bound)
        if mismatch is not None:
            text = f"{where}: gradient of {name}\n{mismatch.describe()}"
            yield Finding(kind="gradient differs", message=text, step=step, rank=rank, mismatch=mismatch)
            return


def _is_zero(gradient: Array | None) -> bool:
    return gradient is None or not any(gradient.data)


def _state_is_right(
    evidence: WrapperEvidence, rank: int, step: int, right: Mapping[str, Array], shown: Mapping[str, Array]
) -> Iterator[Finding]:
    def bounds() -> Mapping[str, Array]:
        return evidence.bounded().after_bounds[step][rank]

    for name, mismatch in differing(evidence, right, shown, bounds=bounds):
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
