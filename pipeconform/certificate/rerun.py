"""Executing a random sample of a package's cases again: the one check that no forged file survives."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from pipeconform.campaign.options import Options
from pipeconform.case.any_case import decode_any_case, schedule_of
from pipeconform.certificate.contents import RESULT, Contents
from pipeconform.certificate.package import Doubt
from pipeconform.replication.either import any_campaign_of, tell
from pipeconform.replication.rejudge import Question, rejudge

__all__ = ["Sample", "rerun", "sample"]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A case to execute again, and what the package says that it shows; nothing: it passes."""

    question: Question
    expected: tuple[str, str] | None

    def name(self) -> str:
        """Requirement, schedule and case."""
        case = self.question.case
        return f"{self.question.requirement} under {schedule_of(case)}, case {case.digest}"


def sample(contents: Contents, number: int, *, rng: random.Random) -> tuple[Sample, ...]:
    """`number` judgements of the package, drawn at random: passed ones, and violations with their cases."""
    cells = {(cell.requirement, cell.schedule, cell.variant): cell for cell in contents.result.cells}
    passed = [
        (one, digest)
        for one in contents.judged
        if (cell := cells.get((one.requirement, one.schedule, one.variant))) is not None
        and cell.status == "passed"
        for digest in one.digests
    ]
    shown = [
        (cell, violation)
        for cell in contents.result.cells
        for violation in cell.violations
        if violation.confirmed
    ]
    chosen = rng.sample(range(len(passed) + len(shown)), min(number, len(passed) + len(shown)))
    found = []
    for index in chosen:
        if index < len(passed):
            one, digest = passed[index]
            case = decode_any_case(contents.cases[digest], source=digest)
            question = Question(requirement=one.requirement, variant=one.variant, case=case)
            found.append(Sample(question=question, expected=None))
        else:
            cell, violation = shown[index - len(passed)]
            question = Question(
                requirement=cell.requirement,
                variant=cell.variant,
                case=violation.case,
                hung=violation.status == "hung",
            )
            found.append(Sample(question=question, expected=(violation.status, violation.signature)))
    return tuple(found)


def rerun(samples: Sequence[Sample], contents: Contents, *, options: Options) -> tuple[Doubt, ...]:
    """Execute the samples on the implementation at hand; what comes out otherwise is a doubt.

    Raises:
        UsageError: the implementation cannot be used.
        HarnessError: the harness failed.
    """
    doubts = list(_same_implementation(contents, options))
    answers = rejudge([one.question for one in samples], options=options)
    for one, again in zip(samples, answers, strict=True):
        (shown,) = again.shown
        what = ", ".join(f"{status}: {signature}" for status, signature in sorted(shown)) or "nothing"
        if one.expected is None and shown:
            doubts.append(
                Doubt(file=RESULT, field="cells.status", text=f"{one.name()} passed, now shows {what}")
            )
        elif one.expected is not None and one.expected not in shown:
            status, signature = one.expected
            text = f"{one.name()} showed {status}: {signature}, now shows {what}"
            doubts.append(Doubt(file=RESULT, field="cells.violations", text=text))
    return tuple(doubts)


def _same_implementation(contents: Contents, options: Options) -> Iterator[Doubt]:
    with any_campaign_of(options) as campaign:
        here = tell(campaign, ()).implementation
    said = contents.result.implementation
    for field in ("name", "version", "source_digest"):
        a, b = getattr(said, field), getattr(here, field)
        if a != b:
            text = f"{a!r}, but {options.implementation} is {b!r}"
            yield Doubt(file=RESULT, field=f"implementation.{field}", text=text)
    if _as_json(said.capabilities) != _as_json(here.capabilities):
        text = f"{options.implementation} claims other things"
        yield Doubt(file=RESULT, field="implementation.capabilities", text=text)


def _as_json(claims: object) -> bytes:
    """A form in which what was read from a file and what was just told are equal."""
    return msgspec.json.encode(claims, order="sorted")
