"""Outcomes of ranks that did not return: they raised, died, hung, or refused what was claimed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from pipeconform.judge.evidence import Finding
from pipeconform.observe.observation import Observation
from pipeconform.ranks.verdict import Died, Raised, Stuck, VerdictVector
from pipeconform.ranks.waiting import Place

__all__ = ["Outcome", "Status", "judge_refusal", "judge_verdicts", "normalised"]


class Status(StrEnum):
    """The result of a requirement under one schedule, or of one execution."""

    PASSED = "passed"
    FAILED = "failed"
    HUNG = "hung"
    CRASHED = "crashed"
    ERROR = "error"
    NOTHING_COMPARED = "nothing_compared"
    NOT_CLAIMED = "not_claimed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Outcome:
    """A finding with the status it gives."""

    status: Status
    finding: Finding
    verdicts: str = ""
    """One line per rank: returned, raised, died or stuck."""
    timeline: tuple[tuple[str, ...], ...] | None = None
    """What each pipeline rank computed in the finding's step; None if that was not observed."""
    first_wrong: tuple[int, int] | None = None
    """In `timeline`: pipeline rank and index."""
    places: tuple[Place, ...] = ()
    """Where every rank was, if any was stuck."""


def normalised(message: str) -> str:
    """The first line of a message without numbers, addresses and printed tensors: equal defects have equal texts.

    Several numbers are as good as one: a defect of shapes is the same for any number of dimensions.
    """
    line = next((line.strip() for line in message.strip().splitlines() if line.strip()), "")
    line = re.sub(r" \[?tensor\(.*", "", line)
    line = re.sub(r"0x[0-9a-f]+", "#", line)
    line = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line)
    return re.sub(r"#(, ?#)+", "#", line)[:120]


def judge_verdicts(verdicts: VerdictVector) -> Outcome | None:
    """The outcome of a verdict vector; None if every rank returned."""
    rank = verdicts.first_failure
    if rank is None:
        return None
    verdict, table = verdicts[rank], verdicts.describe()
    if isinstance(verdict, Died):
        how = verdict.how
        kind = "lost its host" if verdict.lost else f"died: {how}"
        text = "\n".join(
            filter(None, (f"rank {rank} died ({how})", table, verdicts.raised_at, verdicts.printed))
        )
        return Outcome(Status.CRASHED, Finding(kind=kind, message=text, rank=rank))
    if isinstance(verdict, Stuck):
        parts = (
            f"no rank makes progress: {verdict.why}",
            verdicts.waiting,
            table,
            verdict.stack.rstrip(),
            verdicts.printed,
        )
        text = "\n".join(part for part in parts if part)
        finding = Finding(kind="hang", message=text.rstrip(), rank=rank)
        return Outcome(Status.HUNG, finding, places=verdicts.places)
    assert isinstance(verdict, Raised)
    root = verdict.causes[-1] if verdict.causes else verdict
    text = f"rank {rank} raised {root.type}: {root.message.strip()}\n{table}"
    kind = f"raised {root.type}: {normalised(root.message)}"
    hung = [r for r, one in enumerate(verdicts) if isinstance(one, Stuck)]
    if hung:
        text += f"\nwhile rank {', '.join(map(str, hung))} waited for it"
        text += f"\n{verdicts.waiting}" if verdicts.waiting else ""
    text = "\n".join(filter(None, (text, verdicts.raised_at, verdicts.printed)))
    return Outcome(Status.ERROR, Finding(kind=kind, message=text, rank=rank), places=verdicts.places)


def judge_refusal(shown: tuple[Observation, ...]) -> Outcome | None:
    """The outcome of a claimed case that the adapter refused, which fails the claim; None if it refused nothing."""
    for one in shown:
        if one.unsupported is not None:
            text = f"claimed, but build() raised Unsupported: {one.unsupported}"
            kind = f"refused: {normalised(one.unsupported)}"
            return Outcome(Status.ERROR, Finding(kind=kind, message=text, rank=one.rank))
    return None
