"""The judgement of a state that is saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.judge.finding import Finding
from pipeconform.wrappers.judge import WrapperEvidence, differing, failures, is_right

__all__ = [
    "state_travels",
]


def state_travels(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Check that every rank has the loaded state, and that the saved state has the module's names and values.

    A loaded state was saved by the unwrapped module, as with one rank, or by another number of ranks.
    """
    if evidence.earlier is not None:
        found = [*state_travels(evidence.earlier)]
        yield from found or state_arrives(evidence, evidence.earlier)
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
                text = f"rank {shown.rank} saved {_names(wanted)}\nexpected {_names(expected.names)}"
                yield Finding(kind="saved under other names", message=text, rank=shown.rank)
                return
        for name, mismatch in differing(evidence, right, wanted):
            text = f"rank {shown.rank}: {name} {when}\n{mismatch.describe()}"
            yield Finding(kind=kind, message=text, rank=shown.rank, mismatch=mismatch)
            return
    yield from is_right(evidence)


def state_arrives(evidence: WrapperEvidence, earlier: WrapperEvidence) -> Iterator[Finding]:
    """Check that the second world loads the state with which the first ended, and then trains correctly."""
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
