"""A pipeline as the target of a campaign: the requirements judged under each schedule, and their cases."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pipeconform.adapter import Capabilities, Description, ErrorContract, ScheduleClaim
from pipeconform.campaign.corpus import Corpus, Drawable, drawn
from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.campaign.pairs import Point, points_of, reachable_points
from pipeconform.campaign.simplify import simplify
from pipeconform.campaign.target import NotAsked, some_of
from pipeconform.campaign.together import meetings_of, possible_meetings
from pipeconform.case.any_case import AnyCase
from pipeconform.case.case import Case
from pipeconform.case.draw.claimed import crosses_as_claimed, members_within, reachable
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.sizes import shapes
from pipeconform.case.draw.traits import plainer, traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.simpler.scope import Scope
from pipeconform.case.simpler.sizes import without_bystanders
from pipeconform.errors import BadCaseError, UnknownNameError, UsageError
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.precedence import EARLIER, earlier_than
from pipeconform.judge.registry import JUDGEMENTS, Judgement
from pipeconform.report.result import Status
from pipeconform.spec import Profile, Requirement, requirement, requirements
from pipeconform.spec.levels import batch_class
from pipeconform.spec.precedence import BEFORE_ALL, OTHER_RANKS, PRECEDENCE
from pipeconform.spec.wrappers import Kind

__all__ = ["AskedOfPipeline", "PipelineTarget"]

_LEAST_RANKS, _MOST_RANKS = 2, 3
"""The ranks of cases that must expose an implementation that is wrong on purpose."""
_MOST_WITH_SEVERAL = 4
"""The largest number of ranks if every stage is on several ranks."""
_COMMUNICATION = frozenset({"traffic", "reductions"})
"""What ranks record with the recorder of operations."""
_CASES = 12
_SEEDS = (0, 1)
"""The second seed adds cases for defects that need something which no case of the first has."""


@dataclass(frozen=True, kw_only=True)
class PipelineTarget:
    """A pipeline implementation's description, and the extent of a run."""

    name: str
    limits: Limits
    profile: Profile
    version: str = ""
    built_on: str = ""
    errors: ErrorContract = field(default_factory=ErrorContract)
    seed: int = 0
    schedules: tuple[str, ...] = ()
    """The schedules to judge; empty for all that are claimed."""
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    kind: Kind = "pipeline"
    shares_executions: bool = True

    @classmethod
    def of(
        cls,
        description: Description,
        *,
        profile: Profile,
        ranks: tuple[int, int],
        seed: int,
        schedules: tuple[str, ...] = (),
    ) -> PipelineTarget:
        """The target for an implementation with this description, on these numbers of ranks.

        Raises:
            UnknownNameError: one of `schedules` is not claimed.
        """
        least, most = ranks
        whole = cls(
            name=description.name,
            version=description.version,
            built_on=description.built_on,
            errors=description.errors,
            variants=description.variants,
            limits=Limits(capabilities=description.capabilities, min_ranks=least, max_ranks=most),
            profile=profile,
            seed=seed,
        )
        return replace(whole, schedules=whole.chosen(schedules)) if schedules else whole

    @property
    def claims(self) -> Capabilities:
        """The claimed capabilities."""
        return self.limits.capabilities

    @property
    def max_ranks(self) -> int:
        """The largest number of ranks in a case."""
        return self.limits.max_ranks

    @property
    def columns(self) -> tuple[str, ...]:
        """The schedules that are claimed."""
        return tuple(claim.name for claim in self.claims.schedules)

    def chosen(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The claimed schedules named in `wanted`, in any letter case; all claimed schedules if it is empty.

        Raises:
            UnknownNameError: one of them is not claimed.
        """
        if not wanted:
            return self.columns
        by_folded = {name.casefold(): name for name in self.columns}
        for name in wanted:
            if name.casefold() not in by_folded:
                raise UnknownNameError(
                    f"schedule (of {self.name})",
                    name,
                    self.columns,
                    listed_by="pipeconform list --schedules --impl …",
                )
        return tuple(name for name in self.columns if name.casefold() in {w.casefold() for w in wanted})

    # ------------------------------------------------------------------ what is asked

    def ask(
        self, row: Requirement, column: str, *, promises: Callable[[], bool]
    ) -> AskedOfPipeline | NotAsked:
        """The cases that a requirement is judged on under a claimed schedule, or why it is not judged."""
        claim = self.claims.schedule(column)
        assert claim is not None, "columns are claimed schedules"
        enough = self.enough(row)
        reason = self._why_not(row, claim, enough, promises)
        if reason is not None:
            return NotAsked(*reason)
        return AskedOfPipeline(target=self, row=row, claim=claim, is_later=column != enough[0])

    def _why_not(
        self, row: Requirement, claim: ScheduleClaim, enough: tuple[str, ...], promises: Callable[[], bool]
    ) -> tuple[Status, str] | None:
        if not self._reaches(claim.name):
            least, most = self.limits.min_ranks, self.limits.max_ranks
            return "skipped", f"{self.name} claims no pipeline of {least} to {most} ranks under {claim.name}"
        judgement = JUDGEMENTS[row.id]
        foci = judgement.foci(claim, self.claims)
        if not foci:
            return "not_claimed", f"{self.name} does not claim what {row.id} needs under {claim.name}"
        if judgement.promised and not promises():
            return "not_claimed", f"{self.name} promises no errors, which {row.id} is about"
        if not judgement.observe.isdisjoint(_COMMUNICATION) and (parts := _unseen()):
            return "skipped", f"not seen: the recorder does not know {', '.join(parts)} of this torch"
        if not any(self._reaches(claim.name, focus) for focus in foci):
            most = self.limits.max_ranks
            return "skipped", f"{row.id} needs more stages than {most} ranks have under {claim.name}"
        if claim.name not in enough:
            independent = judgement.any_schedule
            why = "does not depend on the schedule" if independent else "is costly in a small run"
            return "skipped", f"{row.id} {why}: judged under {' and '.join(enough)}"
        return None

    def foci(self, row: Requirement, claim: ScheduleClaim) -> tuple[Focus, ...]:
        """The foci from which a requirement's cases are drawn under one schedule."""
        foci = JUDGEMENTS[row.id].foci(claim, self.claims)
        return tuple(focus for focus in foci if self._reaches(claim.name, focus))

    def corpora(self, row: Requirement, claim: ScheduleClaim) -> tuple[Corpus, ...]:
        """The corpora of a requirement under one schedule, one per focus; smaller if its cases are costly."""
        size = self.profile.costly if JUDGEMENTS[row.id].costly else self.profile.corpus

        def least(focus: Focus) -> int:
            return _num_members(self.limits, claim, focus) if self.profile.every_member else 0

        return tuple(
            Corpus(
                limits=self.limits, schedule=claim, focus=focus, seed=self.seed, size=max(size, least(focus))
            )
            for focus in self.foci(row, claim)
        )

    @functools.cached_property
    def _reaches(self) -> Callable[..., bool]:
        """`reachable` under the schedule of a name; remembered, because every cell asks about many schedules."""

        @functools.cache
        def found(schedule: str, focus: Focus = Focus.PLAIN) -> bool:
            claim = self.claims.schedule(schedule)
            return claim is not None and reachable(self.limits, claim, focus)

        return found

    def enough(self, row: Requirement) -> tuple[str, ...]:
        """The schedules under which a requirement is judged.

        For a requirement that does not depend on the schedule, the profile may allow only the first, or the first and
        the last. The same applies to costly requirements; to those about the schedule only in the smallest profile.
        """
        judgement = JUDGEMENTS[row.id]
        names = tuple(
            claim.name
            for claim in self.claims.schedules
            if (not self.schedules or claim.name in self.schedules)
            and self._reaches(claim.name)
            and judgement.foci(claim, self.claims)
        )
        most = self.profile.schedules
        few = judgement.any_schedule or (judgement.costly and not (judgement.by_schedule and most != 1))
        if most is None or not few:
            return names
        training = {claim.name for claim in self.claims.schedules if claim.trains}
        trained = tuple(name for name in names if name in training) or names
        return tuple(dict.fromkeys((*trained[:1], *trained[-1:])))[:most]

    def against(self, requirement: str, column: str) -> Iterator[Case]:
        """Cases that must expose an implementation that breaks the requirement: two to four ranks, every focus.

        An engine that claims one rank only gets cases on one.
        """
        claim = self.claims.schedule(column)
        assert claim is not None, "what is wrong on purpose shows under a schedule that is claimed"
        judgement = JUDGEMENTS[requirement]
        for seed, focus in itertools.product(_SEEDS, judgement.foci(claim, self.claims)):
            most = _MOST_WITH_SEVERAL if SUBJECTS[focus].is_parallel else _MOST_RANKS
            limits = Limits(
                capabilities=self.claims, min_ranks=min(_LEAST_RANKS, claim.max_ranks), max_ranks=most
            )
            size = max(_CASES, _num_members(limits, claim, focus))
            for case in drawn(Corpus(limits=limits, schedule=claim, focus=focus, seed=seed, size=size)):
                if judgement.applies(case):
                    yield case

    # ------------------------------------------------------------------ stored cases

    def allows(self, case: AnyCase) -> bool:
        """Whether the run allows the case's number of ranks, and its schedule is claimed."""
        if not isinstance(case, Case) or self.claims.schedule(case.schedule) is None:
            return False
        return self.limits.min_ranks <= case.num_ranks and case.world.size <= self.limits.max_ranks

    def judged_by(
        self, case: AnyCase, *, name: str, asked: str | None, stored: str | None
    ) -> tuple[Requirement, ...]:
        """The requirements that judge a stored case again."""
        assert isinstance(case, Case), "a pipeline judges its own cases only"
        claim = self.claims.schedule(case.schedule)

        def is_about(row: Requirement) -> bool:
            judgement = JUDGEMENTS.get(row.id)
            if judgement is None or not judgement.applies(case):
                return False
            return claim is None or bool(judgement.foci(claim, self.claims))

        if asked is None and stored is not None:
            if stored not in JUDGEMENTS or not JUDGEMENTS[stored].applies(case):
                raise BadCaseError(  # the file was edited, and judgements expect cases of their own requirement
                    f"{name}: {stored} does not apply to the case that is stored with it; "
                    f"judge the case by another requirement with --requirement ID"
                )
            rows: tuple[Requirement, ...] = (requirement(stored),)
        else:
            rows = some_of(requirements() if asked is None else (requirement(asked),), is_about, asked=asked)
        if not all(Focus.EDGE in JUDGEMENTS[row.id].draws for row in rows):
            self._require_claimed(case)
        return rows

    def _require_claimed(self, case: Case) -> None:
        """Raise if the implementation does not claim the case, which it might then refuse."""
        claim = self.claims.schedule(case.schedule)
        if claim is None:
            raise UnknownNameError(f"schedule (of {self.name})", case.schedule, self.columns)
        p, v = case.num_ranks, case.stages_per_rank
        for run in case.runs:
            m = run.num_microbatches
            if not claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m):
                raise UsageError(
                    f"{self.name} does not claim {case.schedule} with p = {p}, v = {v}, m = {m}; "
                    f"'pipeconform list --schedules' shows what it claims"
                )

    # ------------------------------------------------------------------ properties of cases

    def points(self, case: AnyCase) -> frozenset[Point]:
        """The combinations of properties in a case, one for each class of its numbers of microbatches."""
        return points_of(case) | meetings_of(case) if isinstance(case, Case) else frozenset()

    def reachable(self, columns: Iterable[str]) -> frozenset[Point]:
        """All combinations of properties that cases under these schedules can have."""
        columns = tuple(columns)
        return reachable_points(self.limits, columns) | possible_meetings(self.limits, columns)

    def batch_classes(self, case: AnyCase) -> frozenset[str]:
        """How m compares with p in each run of the case's program."""
        if not isinstance(case, Case):
            return frozenset()
        return frozenset(
            batch_class(num_ranks=case.num_ranks, num_microbatches=run.num_microbatches) for run in case.runs
        )


@dataclass(frozen=True, kw_only=True)
class AskedOfPipeline:
    """A requirement under one schedule, with its corpora."""

    target: PipelineTarget
    row: Requirement
    claim: ScheduleClaim
    is_later: bool

    @property
    def column(self) -> str:
        """The schedule's name."""
        return self.claim.name

    @property
    def _judgement(self) -> Judgement:
        return JUDGEMENTS[self.row.id]

    @property
    def repeats(self) -> bool:
        """Whether judging executes a case again."""
        return self._judgement.repeats

    @property
    def without(self) -> tuple[str, ...]:
        """The requirement's foci that are not claimed under this schedule."""
        return self._judgement.without(self.claim, self.target.claims)

    @property
    def num_ranks(self) -> int:
        """The largest number of ranks in a plain case under this schedule."""
        return max((p for p, _ in shapes(self.target.limits, self.claim)), default=0)

    @property
    def corpora(self) -> tuple[Corpus, ...]:
        """The corpora of the cases, one per focus."""
        return self.target.corpora(self.row, self.claim)

    def own(self, case: AnyCase) -> Case | None:
        """The case if it is a pipeline's under this schedule, else None."""
        return case if isinstance(case, Case) and case.schedule == self.claim.name else None

    def applies(self, case: Case) -> bool:
        """Whether the requirement applies to this case."""
        return self._judgement.applies(case)

    def controls(self, case: Case) -> tuple[tuple[str, Case], ...]:
        """The case without each subject of the requirement that it has.

        A case that lost one subject may have others left, so that no basic requirement judges it; then also the case
        without these.
        """
        subjects = [SUBJECTS[focus] for focus in sorted(self._judgement.about & traits(case))]
        found: dict[Case, str] = {}
        for words, control in (pair for subject in subjects for pair in subject.controls_of(case)):
            found.setdefault(control, words)
            if not self._that_can_explain(PRECEDENCE, control):
                found.setdefault(*plainer(control, words=words))
        return tuple(
            (words, control)
            for control, words in found.items()
            if control != case and self._is_claimed(control)
        )

    def surroundings(self, case: Case) -> tuple[Requirement, str, Case] | None:
        """The ranks outside of the pipeline: they are the business of the requirement about the given group."""
        control = next((one for one in without_bystanders(case) if self._is_claimed(one)), None)
        if control is None or not (self.row.id == OTHER_RANKS or self._can_explain(OTHER_RANKS, case)):
            return None
        return requirement(OTHER_RANKS), "without ranks outside of the pipeline", control

    def instead(self, row: Requirement) -> AskedOfPipeline:
        """What another requirement asks under the same schedule."""
        return replace(self, row=row)

    def explaining(self, control: Case) -> tuple[Requirement, ...]:
        """The basic requirements, and those about what is still special in the control."""
        special = traits(control) - {Focus.PLAIN}
        about = (name for name, one in JUDGEMENTS.items() if one.about & special)
        return self._that_can_explain((*BEFORE_ALL, *PRECEDENCE, *about), control)

    def earlier(self, case: Case, *, controlled: bool) -> tuple[Requirement, ...]:
        """The requirements that `pipeconform.judge.precedence` puts before this one."""
        names = EARLIER.get(self.row.id, ()) if controlled else earlier_than(self.row.id)
        return self._that_can_explain(names, case)

    def _that_can_explain(self, names: Iterable[str], case: Case) -> tuple[Requirement, ...]:
        if not self._is_claimed(case):
            return ()
        return tuple(requirement(name) for name in dict.fromkeys(names) if self._can_explain(name, case))

    def _can_explain(self, name: str, case: Case) -> bool:
        judgement = JUDGEMENTS[name]
        if self.claim.trains and not case.trains and not judgement.evaluates:
            return False  # what only evaluation shows is the business of requirements about evaluation
        alike = (judgement.aftermath is None) == (self._judgement.aftermath is None or not case.is_mistaken)
        return (
            name != self.row.id
            and alike
            and not judgement.repeats
            and judgement.refused is None
            and judgement.applies(case)
            and bool(judgement.foci(self.claim, self.target.claims))
        )

    def _is_claimed(self, case: Case) -> bool:
        p, v = case.num_ranks, case.stages_per_rank
        own = self.target.limits.capabilities.under(self.claim)
        claimed = crosses_as_claimed(case.model, own.boundary) and case.loss.kind in own.losses
        return claimed and all(
            self.claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=run.num_microbatches)
            for run in case.runs
        )

    def smallest(
        self,
        corpus: Drawable[Case],
        case: Case,
        outcome: Outcome,
        check: Callable[[Case], Outcome | None],
        *,
        budget: Budget,
    ) -> Smallest[Case]:
        """Shrink the case by cutting it, within what its corpus could draw."""
        assert isinstance(corpus, Corpus)
        scope = Scope(limits=corpus.limits, claim=corpus.schedule, focus=corpus.focus)

        def allowed(candidate: Case) -> bool:
            return self.applies(candidate) and scope.holds(candidate, origin=case)

        return simplify(case, outcome, check, allowed=allowed, budget=budget)

    def heights(self, case: Case, *, worst_ratio: float | None) -> Mapping[str, float]:
        """The search maximises numeric errors and the number of microbatches that may be in flight."""
        most = max((run.num_microbatches for run in case.runs), default=0)
        return {"error": worst_ratio or 0.0, "in flight": float(most * case.stages_per_rank)}

    def why_nothing_was_compared(self, cases: Iterable[Case]) -> str:
        """The requirement's condition that none of the cases met."""
        return self._judgement.why_nothing_was_compared(cases)


def _num_members(limits: Limits, claim: ScheduleClaim, focus: Focus) -> int:
    """How many members of a subject can be drawn; 0 if it has none."""
    subject = SUBJECTS[focus]
    return len(members_within(limits, claim, subject)) if subject.members else 0


def _unseen() -> tuple[str, ...]:
    """What the installed torch does that the recorder of operations cannot see."""
    from pipeconform.ranks.recording.kernels import unseen  # imports torch

    return unseen()
