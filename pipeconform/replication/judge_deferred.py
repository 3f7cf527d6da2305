"""Judgements about modules that are materialised after they were wrapped."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.judge.finding import Finding
from pipeconform.replication.judge import WrapperEvidence, differing, failures, is_right, refused

__all__ = ["materialises"]


def materialises(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Every rank has what the parts' own initialisation gives, or what was loaded since; then all is right.

    A module that is never materialised is an error on every rank that says so, when it runs or before.
    """
    if evidence.case.deferred == "never":
        yield from refused(evidence, where="wrap|step 0", words=(r"\bmeta\b|materiali|reset_parameters",))
        return
    raised = list(failures(evidence))
    yield from raised
    if raised:
        return
    right = evidence.expected().initial[0]
    when = "after loading" if evidence.case.special == "loaded" else "once it is materialised"
    for shown in evidence.shown:
        for name, mismatch in differing(evidence, right, shown.initial):
            text = f"rank {shown.rank}: {name} {when}\n{mismatch.describe()}"
            yield Finding(kind="materialised otherwise", message=text, rank=shown.rank, mismatch=mismatch)
            return
    yield from is_right(evidence)
