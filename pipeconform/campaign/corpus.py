"""Corpora: the cases of one focus under one schedule, the same on every machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

from pipeconform.adapter import ScheduleClaim
from pipeconform.campaign.runner import CaseT
from pipeconform.case.any_case import AnyCase
from pipeconform.case.case import Case
from pipeconform.case.draw.claimed import members_within
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.strategies import cases
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.seeds import seed_of
from pipeconform.spec import STANDARD_VERSION

__all__ = ["Corpus", "Drawable", "Interesting", "corpus_seed", "drawn", "run_strategy"]

_TRIED = 3  # cases of one turn, of which the last is kept
_SOUGHT = 24  # cases among which one is looked for that a small corpus lacks
CaseT_co = TypeVar("CaseT_co", bound=AnyCase, covariant=True)


class Interesting(Exception):  # noqa: N818 - Hypothesis' term for a case to shrink
    """Makes Hypothesis shrink a case; any other error ends the run at once."""


class _Ended(BaseException):
    """Carries one of our own errors past Hypothesis, which would shrink an `Exception`."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Found(BaseException):
    """Ends the drawing with the case that was looked for; Hypothesis would go on after an `Exception`."""

    def __init__(self, case: Case) -> None:
        self.case = case


class Drawable(Protocol[CaseT_co]):
    """A source of cases that Hypothesis draws and shrinks."""

    @property
    def size(self) -> int:
        """How many cases are drawn by default."""

    def hypothesis_seed(self, purpose: str) -> int:
        """The seed from which cases are drawn for this purpose."""

    def strategy(self) -> SearchStrategy[CaseT_co]:
        """The strategy that draws cases."""

    def drawn(self) -> Iterable[CaseT_co]:
        """The cases of the corpus, the same in every run of its seed."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The parameters of a corpus; equal parameters give equal cases."""

    limits: Limits
    schedule: ScheduleClaim
    focus: Focus
    seed: int
    size: int
    turn: int | None = None
    """Of a subject with members, which one is drawn; None for any."""

    def hypothesis_seed(self, purpose: str) -> int:
        """The seed from which cases are drawn for this purpose."""
        return corpus_seed(self, purpose=purpose)

    def strategy(self) -> SearchStrategy[Case]:
        """The strategy that draws cases."""
        return cases(self.limits, self.schedule, self.focus, turn=self.turn)

    def drawn(self) -> tuple[Case, ...]:
        """The distinct cases; see the function `drawn`."""
        return drawn(self)


def corpus_seed(corpus: Corpus, *, purpose: str = "corpus") -> int:
    """The Hypothesis seed of a corpus, from the run's seed, the standard's version and what is drawn."""
    return seed_of(corpus.seed, STANDARD_VERSION, corpus.schedule.name, corpus.focus, purpose)


def run_strategy(
    corpus: Drawable[CaseT],
    body: Callable[[CaseT], bool | None],
    *,
    max_examples: int,
    purpose: str = "corpus",
    shrink: bool = False,
    steered: bool = False,
) -> None:
    """Let Hypothesis draw cases of `corpus` and pass them to `body`, with settings that no Hypothesis profile changes.

    Hypothesis shrinks a case for which `body` returns True. Equal arguments draw equal cases in equal order up to the
    first such case. With `steered`, `body` may call `hypothesis.target`; the order then depends on those calls as well.

    Raises:
        Interesting: shrinking came to its end.
    """
    phases = [Phase.generate, *([Phase.target] if steered else []), *([Phase.shrink] if shrink else [])]

    @seed(corpus.hypothesis_seed(purpose))
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
    @given(corpus.strategy())
    def drive(case: CaseT) -> None:
        try:
            interesting = body(case)
        except Exception as error:
            raise _Ended(error) from error
        if interesting:
            raise Interesting  # from one line only: Hypothesis distinguishes findings by where they are raised

    try:
        drive()
    except _Ended as ended:
        raise ended.error from None


@functools.lru_cache(maxsize=1024)
def drawn(corpus: Corpus) -> tuple[Case, ...]:
    """The distinct cases of a corpus, in the order in which Hypothesis draws them.

    If its subject has members, they take turns, from one schedule to the next: then small corpora reach many of them,
    and large ones all. If none of the cases has several microbatches on several ranks, the last one makes way for such
    a case; of a subject about replicas, for one with several of these, too.
    """
    if corpus.turn is None and SUBJECTS[corpus.focus].members:
        return _in_turns(corpus)
    found: dict[str, Case] = {}

    def keep(case: Case) -> None:
        found.setdefault(case.digest, case)

    run_strategy(corpus, keep, max_examples=corpus.size)
    distinct = list(found.values())
    if corpus.turn is None:
        distinct = _with_a_pipeline(distinct, corpus)
    if corpus.focus is Focus.PLAIN and not any(map(_is_steady, distinct)):
        distinct += _further(corpus, _is_steady)
    return tuple(distinct)


def _in_turns(corpus: Corpus) -> tuple[Case, ...]:
    """The distinct cases of a corpus whose subject has members, one for each turn; in each round of turns another."""
    subject = SUBJECTS[corpus.focus]
    names = [one.name for one in corpus.limits.capabilities.schedules if one.trains or not subject.trains]
    begin = names.index(corpus.schedule.name) * corpus.size
    num_members = len(members_within(corpus.limits, corpus.schedule, subject))
    rounds = -(-corpus.size // num_members)
    found = []
    for place in range(corpus.size):
        of_member = _of_member(replace(corpus, turn=(begin + place) % num_members), rounds)
        found += of_member[place // num_members :][:1]
    found = _with_a_pipeline(found, replace(corpus, size=_TRIED, turn=begin + corpus.size - 1))
    return tuple({case.digest: case for case in found}.values())


def _of_member(corpus: Corpus, rounds: int) -> list[Case]:
    """The cases of one member, the first for the first round; there may be fewer than rounds."""
    # the first case that Hypothesis draws is the simplest one
    first = drawn(replace(corpus, size=_TRIED))[-1]
    further = drawn(replace(corpus, size=_TRIED * rounds)) if rounds > 1 else ()
    return [first, *(case for case in further if case.digest != first.digest)]


def _with_a_pipeline(cases: list[Case], corpus: Corpus) -> list[Case]:
    """The cases, of which the last makes way for one with a pipeline, or replicas of one, if none of them has that."""
    wanted = _is_replicated if SUBJECTS[corpus.focus].form == "replicas" else _is_pipelined
    one_rank = min(corpus.limits.max_ranks, corpus.schedule.max_ranks) == 1
    if one_rank or any(map(wanted, cases)):
        return cases
    return [*cases[:-1], *(_further(corpus, wanted) or cases[-1:])]


def _is_replicated(case: Case) -> bool:
    return _is_pipelined(case) and case.world.num_replicas > 1


def _is_pipelined(case: Case) -> bool:
    """Whether several microbatches pass through several ranks: much that is wrong shows with one of either nowhere."""
    return case.num_ranks > 1 and any(run.num_microbatches > 1 for run in case.runs)


def _is_steady(case: Case) -> bool:
    """Whether there are more microbatches than ranks: then ranks come to alternate forwards and backwards.

    What is judged of plain cases is what most people do most of the time; a small corpus may have only short steps.
    """
    return case.num_ranks > 1 and all(run.num_microbatches > case.num_ranks for run in case.runs)


def _further(corpus: Corpus, wanted: Callable[[Case], bool]) -> list[Case]:
    """The first such case that is drawn further on; none if the schedule or the limits have no such cases."""

    def stop(case: Case) -> None:
        if wanted(case):
            raise _Found(case)

    try:
        run_strategy(corpus, stop, max_examples=corpus.size + _SOUGHT)
    except _Found as found:
        return [found.case]
    return []
