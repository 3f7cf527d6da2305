"""How a requirement is judged: with which cases, and what the ranks record.

The decorators of this module turn a function in ``suites/``, which states a requirement, into a `Judgement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.case.case import Case
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.judge import schedules
from pipeconform.judge.aftermath import Aftermath
from pipeconform.judge.conditions import Condition
from pipeconform.judge.evidence import Evidence, Finding, Judge
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.refusals import Refusal
from pipeconform.observe.observation import Watched
from pipeconform.spec.catalogue import Level, Promise, Requirement, stated
from pipeconform.spec.lines import first_line

__all__ = [
    "LONELINESS",
    "TIMELINE",
    "AfterJudge",
    "Judgement",
    "RefusalJudge",
    "after_mistakes",
    "of_refusals",
    "requirement",
]

TIMELINE: frozenset[Watched] = frozenset({"timeline"})
LONELINESS: frozenset[Watched] = frozenset({"loneliness"})
_INSIDE: frozenset[Watched] = frozenset({"timeline", "memory"})
"""What is seen only of stages whose modules compute."""

AfterJudge = Callable[[Aftermath], Iterator[Outcome]]
RefusalJudge = Callable[[Refusal], Iterator[Outcome]]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How one requirement is judged.

    A case is judged when one of its traits is in `about` and all of them are in `among`.
    """

    requirement: Requirement
    judge: Judge
    about: frozenset[Focus]
    among: frozenset[Focus]
    needs: frozenset[Feature] = frozenset()
    trains: bool = False
    """Whether only training steps are judged."""
    splits: bool = False
    """Whether the requirement is about schedules that split the backward pass."""
    tolerates: frozenset[Focus] = frozenset()
    """Subjects whose cases an implementation may also refuse, with an error on every rank."""
    echoes: bool = False
    """Whether the error of one rank is enough of a refusal when the others only lose their connection to it."""
    anywhere: bool = False
    """Whether an error on one rank is enough of a refusal, if no rank that holds results returned any."""
    repeats: bool = False
    """Whether the case is executed several times and the executions compared."""
    evaluates: bool = False
    """Whether only evaluation steps are judged."""
    draws: frozenset[Focus] = frozenset()
    """The foci to draw cases from, if they differ from `about`."""
    observe: frozenset[Watched] = frozenset()
    """What the ranks must record in addition to the values."""
    aftermath: AfterJudge | None = None
    """Judges cases that make a mistake on purpose; `judge` is then not called."""
    refused: RefusalJudge | None = None
    """Judges how cases are refused; `judge` is then not called."""
    named: bool = False
    """Whether the schedule's claim must name the family that it belongs to."""
    promised: bool = False
    """Whether it is about promised errors, and so applies only to implementations that promise any."""
    any_schedule: bool = False
    """Whether the subject does not depend on the schedule: a small run judges it under two schedules."""
    costly: bool = False
    """Whether its cases cost ten times as much as others: a small run judges few of them, under two schedules."""
    by_schedule: bool = False
    """Whether it is costly but about what a schedule does: only the smallest run leaves schedules out."""
    condition: Condition | None = None
    """A condition on a case without which it says nothing about the requirement."""
    nothing: str = "the ranks showed nothing to compare with the reference"
    """Why cases that meet the condition may have nothing to compare."""
    refusal: Callable[[Case, Sequence[str]], Iterator[Finding]] | None = None
    """Judges a tolerated refusal by the error messages of the ranks."""

    @property
    def line(self) -> int:
        """The line of its file on which the requirement begins."""
        return first_line(self.aftermath or self.refused or self.judge)

    @property
    def wanted(self) -> frozenset[Focus]:
        """The foci to draw cases from, where all of them are claimed."""
        return self.draws or self.about

    @property
    def is_inside(self) -> bool:
        """Whether it is about what happens inside of a stage's module, which no graph of the stage shows."""
        # of more steps and pipelines, what is left behind outside of modules is seen, too
        return bool(self.observe & _INSIDE) and "rounds" not in self.observe

    def is_met_by(self, case: Case) -> bool:
        """Whether a case meets the condition of the requirement."""
        return self.condition is None or self.condition.holds(case)

    def why_nothing_was_compared(self, cases: Iterable[Case]) -> str:
        """The reason why judging all of `cases` compared nothing."""
        if self.condition is not None and not any(map(self.condition.holds, cases)):
            return f"nothing compared: {self.condition.absent}"
        return f"nothing compared: {self.nothing}"

    def applies(self, case: Case) -> bool:
        """Whether `case` is judged by the requirement."""
        found = traits(case)
        return (
            bool(found & self.about)
            and found <= self.among
            and (not self.trains or bool(case.trains))
            and (not self.evaluates or len(case.trains) < len(case.runs))
        )

    def foci(self, claim: ScheduleClaim, capabilities: Capabilities) -> tuple[Focus, ...]:
        """The foci to draw cases from; empty if something that the requirement needs is not claimed."""
        if not self.needs <= capabilities.under(claim).features or (self.trains and not claim.trains):
            return ()
        if self.splits and not claim.split_backward:
            return ()
        if self.evaluates and not claim.evaluates:
            return ()
        if capabilities.computed_by == "graphs" and self.is_inside:
            return ()
        if self.named and not schedules.is_named(claim, declared=Feature.DECLARED_TABLE in self.needs):
            return ()
        return tuple(f for f in Focus if f in self.wanted and is_claimed(f, claim, capabilities))

    def without(self, claim: ScheduleClaim, capabilities: Capabilities) -> tuple[str, ...]:
        """The names of the wanted foci for which no case is drawn, because they are not claimed."""
        drawn = self.foci(claim, capabilities)
        return tuple(f.value for f in Focus if f in self.wanted and f not in drawn)


def requirement(
    identifier: str,
    *,
    title: str,
    level: Level,
    promise: Promise | tuple[Promise, ...],
    about: Iterable[Focus],
    among: Iterable[Focus] = (),
    needs: Iterable[Feature] = (),
    tolerates: Iterable[Focus] = (),
    draws: Iterable[Focus] = (),
    observe: Iterable[Watched] = (),
    trains: bool = False,
    splits: bool = False,
    evaluates: bool = False,
    repeats: bool = False,
    echoes: bool = False,
    anywhere: bool = False,
    named: bool = False,
    any_schedule: bool = False,
    costly: bool = False,
    by_schedule: bool = False,
    tolerates_errors: bool = False,
    condition: Condition | None = None,
    nothing: str = Judgement.nothing,
    refusal: Callable[[Case, Sequence[str]], Iterator[Finding]] | None = None,
) -> Callable[[Judge], Judgement]:
    """State a requirement: the function's docstring says what is demanded and why, its body judges it.

    The fields of `Judgement` document the arguments; cases may also have the subjects of `among`. If some subjects may
    be refused (`tolerates`), an error on every rank also meets the requirement.
    """
    own = frozenset(about)

    def judgement(judge: Judge) -> Judgement:
        return Judgement(
            requirement=stated(
                judge,
                identifier,
                title=title,
                level=level,
                promise=promise,
                tolerates_errors=tolerates_errors or bool(tolerates),
            ),
            judge=judge,
            about=own,
            among=own.union(among),
            needs=frozenset(needs),
            tolerates=frozenset(tolerates),
            draws=frozenset(draws),
            observe=frozenset(observe),
            trains=trains,
            splits=splits,
            evaluates=evaluates,
            repeats=repeats,
            echoes=echoes,
            anywhere=anywhere,
            named=named,
            any_schedule=any_schedule,
            costly=costly,
            by_schedule=by_schedule,
            condition=condition,
            nothing=nothing,
            refusal=refusal,
        )

    return judgement


def after_mistakes(
    identifier: str,
    *,
    title: str,
    level: Level,
    promise: Promise | tuple[Promise, ...],
    about: Iterable[Focus],
    observe: Iterable[Watched] = (),
    promised: bool = False,
    by_schedule: bool = False,
    condition: Condition | None = None,
    nothing: str = "no rank was seen to end",
) -> Callable[[AfterJudge], Judgement]:
    """State a requirement about cases that make a mistake on purpose; what the ranks then do is judged.

    With `by_schedule` it is about state that may live in what one schedule does: only the smallest run leaves schedules
    out, and few cases are drawn under each.
    """
    own = frozenset(about)

    def judgement(aftermath: AfterJudge) -> Judgement:
        return Judgement(
            requirement=stated(aftermath, identifier, title=title, level=level, promise=promise),
            judge=_unasked,
            about=own,
            among=own,
            aftermath=aftermath,
            trains=True,
            any_schedule=not by_schedule,
            costly=by_schedule,
            by_schedule=by_schedule,
            observe=frozenset(observe),
            promised=promised,
            condition=condition,
            nothing=nothing,
        )

    return judgement


def of_refusals(
    identifier: str,
    *,
    title: str,
    level: Level,
    promise: Promise | tuple[Promise, ...],
    about: Iterable[Focus],
    trains: bool = False,
    any_schedule: bool = False,
    costly: bool = False,
    condition: Condition | None = None,
    nothing: str = "no case was refused",
) -> Callable[[RefusalJudge], Judgement]:
    """State a requirement about how cases are refused: how every rank ended, and what it said, is judged."""
    own = frozenset(about)

    def judgement(refused: RefusalJudge) -> Judgement:
        return Judgement(
            requirement=stated(refused, identifier, title=title, level=level, promise=promise),
            judge=_unasked,
            about=own,
            among=own,
            refused=refused,
            trains=trains,
            any_schedule=any_schedule,
            costly=costly,
            condition=condition,
            nothing=nothing,
        )

    return judgement


def _unasked(evidence: Evidence) -> Iterator[Finding]:
    raise AssertionError(f"case {evidence.case.digest}: only how its ranks end is judged")
