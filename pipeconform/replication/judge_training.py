"""Judgements about what training needs besides the mean gradient: scalers, precision, state, pickles, words."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.judge.finding import Finding
from pipeconform.judge.numerics import compare
from pipeconform.replication.judge import (
    WrapperEvidence,
    differing,
    failures,
    hook_is_used,
    is_right,
    refused,
)
from pipeconform.replication.special import FIRST_SCALE

__all__ = [
    "goes_on_in_a_group",
    "pickles",
    "refuses_devices",
    "rounds_as_asked",
    "scales_alike",
    "state_travels",
    "tells",
]

_TYPES = ("TypeError", "ValueError", "RuntimeError")


def scales_alike(evidence: WrapperEvidence) -> Iterator[Finding]:
    """All is right, steps with an infinite gradient are skipped everywhere, and the scale is the same on all ranks."""
    found = list(is_right(evidence))
    yield from found
    if found:
        return
    due = FIRST_SCALE
    for index, step in enumerate(evidence.case.steps):
        due = due / 2 if step.overflow is not None else due
        for shown in evidence.shown:
            scale = shown.steps[index].scale
            evidence.compared()
            if scale != due:
                text = (
                    f"rank {shown.rank}, after step {index}: losses are scaled by {scale}, expected is {due}"
                )
                yield Finding(kind="scale differs", message=text, step=index, rank=shown.rank)
                return


def rounds_as_asked(evidence: WrapperEvidence) -> Iterator[Finding]:
    """All is right, and a gradient whose mean tells one dtype from another is rounded to that of the reduction."""
    found = list(is_right(evidence))
    yield from found
    if found:
        return
    expected = evidence.expected()
    for shown in evidence.shown:
        for index, step in enumerate(shown.steps):
            for seen, due in zip(step.passes, expected.steps[index], strict=True):
                if seen.gradients is None:
                    continue
                evidence.compared()
                mismatch = compare(due.gradients[shown.rank]["probe"], seen.gradients["probe"])
                if mismatch is not None:
                    text = (
                        f"rank {shown.rank}, step {index}: the gradient of probe is not rounded to "
                        f"{evidence.case.options.reduce_dtype}\n{mismatch.describe()}"
                    )
                    kind = "reduced in another dtype"
                    yield Finding(kind=kind, message=text, step=index, rank=shown.rank, mismatch=mismatch)
                    return


def goes_on_in_a_group(evidence: WrapperEvidence) -> Iterator[Finding]:
    """All is right; a hook is given every gradient once, before another group took over and after."""
    yield from (hook_is_used if evidence.case.hook else is_right)(evidence)


def state_travels(evidence: WrapperEvidence) -> Iterator[Finding]:
    """What is loaded is there, on every rank; what is saved is the state, by the names that the module had.

    A state that is loaded was saved with one rank, by the module itself, or by another number of ranks.
    """
    if evidence.earlier is not None:
        found = [*state_travels(evidence.earlier)]
        yield from found or _arrives(evidence, evidence.earlier)
        return
    raised = list(failures(evidence))
    yield from raised
    if raised:
        return
    expected = evidence.expected()
    for shown in evidence.shown:
        wanted, when, kind = shown.initial, "after loading", "loaded otherwise"
        right = expected.initial[0]
        if evidence.case.special == "saved":
            wanted, when, kind, right = shown.saved, "in what is saved", "saved otherwise", shown.final
            if set(wanted) != set(expected.names):
                text = f"rank {shown.rank}: saved are {_names(wanted)}\nexpected {_names(expected.names)}"
                yield Finding(kind="saved under other names", message=text, rank=shown.rank)
                return
        for name, mismatch in differing(evidence, right, wanted):
            text = f"rank {shown.rank}: {name} {when}\n{mismatch.describe()}"
            yield Finding(kind=kind, message=text, rank=shown.rank, mismatch=mismatch)
            return
    yield from is_right(evidence)


def _arrives(evidence: WrapperEvidence, earlier: WrapperEvidence) -> Iterator[Finding]:
    """What the ranks of one world have after their steps, those of another have after loading; then all is right."""
    raised = list(failures(evidence))
    yield from raised
    if raised:
        return
    saved = earlier.shown[0].final
    for shown in evidence.shown:
        for name, mismatch in differing(evidence, saved, shown.initial):
            text = (
                f"rank {shown.rank} of {evidence.case.ranks}: {name} after loading is not what "
                f"{earlier.case.ranks} ranks saved\n{mismatch.describe()}"
            )
            yield Finding(kind="loaded otherwise", message=text, rank=shown.rank, mismatch=mismatch)
            return
    yield from is_right(evidence)


def _names(names: object) -> str:
    return ", ".join(sorted(names))  # type: ignore[call-overload]


def pickles(evidence: WrapperEvidence) -> Iterator[Finding]:
    """What comes back from a pickle trains on; in another process group than the default one pickling is refused."""
    if not evidence.case.options.new_group:
        yield from is_right(evidence)
        return
    yield from refused(evidence, where="pickled", words=("default", "group"))


def tells(evidence: WrapperEvidence) -> Iterator[Finding]:
    """What the wrapper tells about itself is true; a rate below one is refused."""
    if evidence.case.special == "logged_wrongly":
        yield from refused(evidence, where="logged_wrongly", words=("rate",), types=_TYPES)
        return
    found = list(is_right(evidence))
    yield from found
    for shown in evidence.shown if not found else ():
        due = {"world_size": str(evidence.case.ranks), "rank": str(shown.rank), "module_name": "_Module"}
        for name, value in due.items():
            told = shown.logged.get(name)
            evidence.compared()
            if told != value:
                text = f"rank {shown.rank}: {name} is told to be {told!r}, expected is {value!r}"
                yield Finding(kind="tells something else", message=text, rank=shown.rank)
                return


def refuses_devices(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Every rank raises when the module is wrapped; the message speaks of devices."""
    yield from refused(evidence, where="wrap", words=("device",), types=_TYPES)
