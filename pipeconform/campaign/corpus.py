"""Corpora: the cases of one focus under one schedule, drawn once and the same on every machine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from pipeconform.adapter import ScheduleClaim
from pipeconform.case.case import Case
from pipeconform.case.modules import seed_of
from pipeconform.case.strategies import Focus, Limits, cases
from pipeconform.spec import STANDARD_VERSION

__all__ = ["Corpus", "Interesting", "corpus_seed", "drawn", "run_strategy"]


class Interesting(Exception):  # noqa: N818 - Hypothesis' word for a case to shrink
    """Raised to make Hypothesis shrink a case; any other error ends the run at once."""


class _Ended(BaseException):
    """Carries an error of ours past Hypothesis, which would shrink it like a finding."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """How a corpus is drawn; two equal ones hold the same cases."""

    limits: Limits
    schedule: ScheduleClaim
    focus: Focus
    seed: int
    size: int


def corpus_seed(corpus: Corpus, *, purpose: str = "corpus") -> int:
    """The Hypothesis seed of a corpus: from the run's seed, the standard's version and what is drawn."""
    return seed_of(corpus.seed, STANDARD_VERSION, corpus.schedule.name, corpus.focus, purpose)


def run_strategy(
    corpus: Corpus,
    body: Callable[[Case], bool | None],
    *,
    max_examples: int,
    purpose: str = "corpus",
    shrink: bool = False,
) -> None:
    """Let Hypothesis draw cases of `corpus` and hand them to `body`, under our own explicit settings.

    A case for which `body` returns True is what Hypothesis shrinks. Equal arguments draw equal cases in
    equal order up to the first of them.

    Raises:
        Interesting: shrinking ended by itself.
    """
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]

    @seed(corpus_seed(corpus, purpose=purpose))
    @settings(
        max_examples=max_examples,
        phases=phases,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(corpus.limits, corpus.schedule, corpus.focus))
    def drive(case: Case) -> None:
        try:
            interesting = body(case)
        except Exception as error:
            raise _Ended(error) from error
        if interesting:
            raise Interesting  # from one line only: Hypothesis tells findings apart by where they are raised

    try:
        drive()
    except _Ended as ended:
        raise ended.error from None


@functools.lru_cache(maxsize=1024)
def drawn(corpus: Corpus) -> tuple[Case, ...]:
    """The distinct cases of a corpus, in the order drawn; Hypothesis' first, smallest example last.

    Hypothesis begins with the smallest example of every strategy. It is the weakest case there is, so
    it counts only as one of several.
    """
    found: dict[str, Case] = {}

    def keep(case: Case) -> None:
        found.setdefault(case.digest, case)

    run_strategy(corpus, keep, max_examples=corpus.size)
    return tuple(found.values())
