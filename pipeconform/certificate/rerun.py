"""Executing a random sample of the cases that a package must have judged: the check that detects any forged file.

The cases are drawn again from the claims, never taken from the package, and the verifier's random numbers choose which
of them are executed, so a package cannot be made to suit the sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from pipeconform.campaign.options import Options
from pipeconform.campaign.rejudge import Question, rejudge
from pipeconform.campaign.setup import campaign_of
from pipeconform.campaign.telling import implementation_of
from pipeconform.case.any_case import AnyCase, schedule_of
from pipeconform.certificate.contents import CERTIFICATE, RESULT, Contents
from pipeconform.certificate.engine import engine_in
from pipeconform.certificate.listed import Listed
from pipeconform.certificate.package import Doubt

__all__ = ["rerun", "sample"]

_TELLING = 8
"""How much more likely a case with several ranks and several microbatches is chosen: other cases show little."""


def sample(expected: Listed, contents: Contents, number: int, *, rng: random.Random) -> tuple[Question, ...]:
    """`number` judgements of cells that the package says are met, each with a case that was drawn again.

    Cells are taken in turn, in random order, so that the sample is spread over requirements and schedules.
    """
    met = {
        (cell.requirement, cell.schedule, cell.variant)
        for cell in contents.result.cells
        if cell.status == "passed"
    }
    left = [
        (cell, {case.digest: case for case in cell.cases})
        for cell in expected.cells
        if cell.cases and cell.key in met
    ]
    rng.shuffle(left)
    found: list[Question] = []
    while left and len(found) < number:
        for cell, cases in left[: number - len(found)]:
            weights = [_TELLING if _tells(case, expected) else 1 for case in cases.values()]
            (digest,) = rng.choices(list(cases), weights)
            found.append(Question(requirement=cell.requirement, variant=cell.variant, case=cases.pop(digest)))
        left = [(cell, cases) for cell, cases in left if cases]
    return tuple(found)


def _tells(case: AnyCase, expected: Listed) -> bool:
    return case.num_ranks > 1 and expected.target.batch_classes(case) != {"one"}


def rerun(questions: Sequence[Question], contents: Contents, *, options: Options) -> tuple[Doubt, ...]:
    """Execute cases that passed on the implementation of `options`; a different outcome is a doubt.

    Raises:
        UsageError: the implementation cannot be used.
        HarnessError: the harness failed.
    """
    doubts = list(_same_implementation(contents, options))
    for one, again in zip(questions, rejudge(questions, options=options), strict=True):
        (shown,) = again.shown
        if shown:
            what = ", ".join(f"{status}: {signature}" for status, signature in sorted(shown))
            name = f"{one.requirement} under {schedule_of(one.case)}, case {one.case.digest}"
            doubts.append(Doubt(file=RESULT, field="cells.status", text=f"{name} passed, now shows {what}"))
    return tuple(doubts)


def _same_implementation(contents: Contents, options: Options) -> Iterator[Doubt]:
    with campaign_of(options) as campaign:
        here = implementation_of(campaign)
        engine = engine_in(campaign)
    said = contents.result.implementation
    for field in ("name", "version", "built_on", "source_digest"):
        a, b = getattr(said, field), getattr(here, field)
        if a != b:
            text = f"{a!r}, but {options.implementation} is {b!r}"
            yield Doubt(file=RESULT, field=f"implementation.{field}", text=text)
    for field, what in (("capabilities", "claims"), ("errors", "promises")):
        if _as_json(getattr(said, field)) != _as_json(getattr(here, field)):
            text = f"{options.implementation} {what} something else"
            yield Doubt(file=RESULT, field=f"implementation.{field}", text=text)
    certified = {one.name: one for one in contents.certificate.engine}
    found = {one.name: one for one in engine}
    for name in sorted(certified.keys() | found.keys()):
        a, b = certified.get(name), found.get(name)
        if a != b:
            was = "is not named" if a is None else f"has the digest {a.digest[:12]} {a.version}".rstrip()
            now = "is not used" if b is None else f"has {b.digest[:12]} {b.version}".rstrip()
            yield Doubt(file=CERTIFICATE, field="engine", text=f"{name} {was}, here it {now}")


def _as_json(claims: object) -> bytes:
    """A form in which claims read from a file equal claims just described."""
    return msgspec.json.encode(claims, order="sorted")
