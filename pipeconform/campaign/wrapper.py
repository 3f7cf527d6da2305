"""A data-parallel wrapper as the target of a campaign: its requirements, and the cases for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from pipeconform.campaign.corpus import Drawable
from pipeconform.campaign.minimise import Budget, Smallest, minimise
from pipeconform.campaign.pairs import Point
from pipeconform.campaign.target import NotAsked, some_of
from pipeconform.case.any_case import WRAPPER_COLUMN, AnyCase
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import NothingJudgedError, UsageError
from pipeconform.judge.outcome import Outcome
from pipeconform.spec import Profile, Requirement
from pipeconform.spec.precedence import PLAIN_TRAINING, PLAINEST_OF_WRAPPERS
from pipeconform.spec.wrappers import Kind, wrapper_chapter, wrapper_requirement
from pipeconform.wrapper import WrapperClaims, WrapperDescription
from pipeconform.wrappers.control import plain_control
from pipeconform.wrappers.drawing import Listed, Smaller, is_about
from pipeconform.wrappers.judgement import why_not_judged
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS

__all__ = ["AskedOfWrapper", "WrapperTarget"]


@dataclass(frozen=True, kw_only=True)
class WrapperTarget:
    """A wrapper's description, and the extent of a run."""

    description: WrapperDescription
    profile: Profile
    ranks: tuple[int, int] = (1, 4)
    """The smallest and the largest number of replicas in a case."""
    seed: int = 0
    examples: int | None = None
    """How many of a requirement's listed cases are judged; None for all."""
    kind: Kind = "wrapper"
    shares_executions: bool = False
    columns: tuple[str, ...] = (WRAPPER_COLUMN,)
    """A wrapper has no schedules."""
    errors: None = None
    built_on: str = ""
    """Nothing: what is known of a wrapper is known of it alone."""

    @classmethod
    def of(
        cls,
        description: WrapperDescription,
        *,
        profile: Profile,
        ranks: tuple[int, int],
        seed: int,
        examples: int | None = None,
        schedules: tuple[str, ...] = (),
    ) -> WrapperTarget:
        """The target for a wrapper with this description, on these numbers of ranks.

        Raises:
            UsageError: `schedules` were asked for.
        """
        found = cls(
            description=description,
            profile=msgspec.structs.replace(profile, search=profile.wrapper_search),
            ranks=ranks,
            seed=seed,
            examples=examples,
        )
        found.chosen(schedules)
        return found

    @property
    def name(self) -> str:
        """The name in its description."""
        return self.description.name

    @property
    def version(self) -> str:
        """The version in its description."""
        return self.description.version

    @property
    def claims(self) -> WrapperClaims:
        """The claims in its description."""
        return self.description.claims

    @property
    def variants(self) -> Mapping[str, Mapping[str, str]]:
        """The environment variants in its description."""
        return self.description.variants

    @property
    def max_ranks(self) -> int:
        """The largest number of replicas that the run allows."""
        return self.ranks[1]

    def chosen(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The only column.

        Raises:
            UsageError: schedules were asked for.
        """
        if wanted:
            raise UsageError(
                f"--schedules: {self.name} is a data-parallel wrapper, which has no schedules; leave the option out"
            )
        return self.columns

    # ------------------------------------------------------------------ what is asked

    def ask(
        self, row: Requirement, column: str, *, promises: Callable[[], bool]
    ) -> AskedOfWrapper | NotAsked:
        """The requirement's listed cases within the claims and the ranks of the run, or why it is not judged."""
        judgement = WRAPPER_JUDGEMENTS[row.id]
        if reason := why_not_judged(judgement, self.description):
            return NotAsked("not_claimed", reason)
        listed = judgement.drawn(self.claims, seed=self.seed, whole_grid=self.profile.whole_grids)
        if not listed:
            raise NothingJudgedError(f"{row.id} is claimed, but no case lies inside the claims")
        inside = tuple(filter(self.allows, listed))[: self.examples]
        if not inside:
            fewest = min(case.ranks for case in listed)
            return NotAsked(
                "skipped", f"{row.id} needs {fewest} or more replicas; --ranks allows {self.max_ranks}"
            )
        return AskedOfWrapper(
            row=row,
            listed=Listed(requirement=row.id, cases=inside, seed=self.seed),
            plain=self._plain_cases() if row.id != PLAINEST_OF_WRAPPERS else (),
        )

    def _plain_cases(self) -> tuple[WrapperCase, ...]:
        """The listed cases of the plainest requirement; empty if it is not claimed or the run allows none of them."""
        judgement = WRAPPER_JUDGEMENTS[PLAINEST_OF_WRAPPERS]
        if why_not_judged(judgement, self.description):
            return ()
        return tuple(filter(self.allows, judgement.drawn(self.claims, seed=self.seed)))

    def against(self, requirement: str, column: str) -> Iterator[WrapperCase]:
        """The requirement's listed cases."""
        yield from WRAPPER_JUDGEMENTS[requirement].drawn(self.claims, seed=0)

    # ------------------------------------------------------------------ stored cases

    def allows(self, case: AnyCase) -> bool:
        """Whether this is a wrapper case with a number of replicas that the run and the claims allow."""
        if not isinstance(case, WrapperCase):
            return False
        most = min(self.ranks[1], self.claims.max_ranks)
        return self.ranks[0] <= min(case.world_sizes) and max(case.world_sizes) <= most

    def judged_by(
        self, case: AnyCase, *, name: str, asked: str | None, stored: str | None
    ) -> tuple[Requirement, ...]:
        """The requirements that judge a stored case again: those with listed cases like it."""
        assert isinstance(case, WrapperCase), "a wrapper judges its own cases only"
        asked = asked or stored

        def is_like_a_listed_one(row: Requirement) -> bool:
            listed = WRAPPER_JUDGEMENTS[row.id].drawn(self.claims, seed=0)
            return bool(listed) and is_about(case, listed)

        wanted = wrapper_chapter().requirements if asked is None else (wrapper_requirement(asked),)
        return some_of(wanted, is_like_a_listed_one, asked=asked)

    # ------------------------------------------------------------------ properties of cases

    def points(self, case: AnyCase) -> frozenset[Point]:
        """Combinations of properties are not counted for wrappers."""
        return frozenset()

    def reachable(self, columns: Iterable[str]) -> frozenset[Point]:
        """Combinations of properties are not counted for wrappers."""
        return frozenset()

    def batch_classes(self, case: AnyCase) -> frozenset[str]:
        """Empty: a wrapper has no microbatches."""
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class AskedOfWrapper:
    """A requirement and its listed cases."""

    row: Requirement
    listed: Listed
    column: str = WRAPPER_COLUMN
    is_later: bool = False
    repeats: bool = False
    without: tuple[str, ...] = ()
    plain: tuple[WrapperCase, ...] = ()
    """The listed cases of the requirement about plain training; empty if this is that requirement."""

    @property
    def num_ranks(self) -> int:
        """The largest number of replicas in a listed case."""
        return max(max(case.world_sizes) for case in self.listed.cases)

    @property
    def corpora(self) -> tuple[Listed, ...]:
        """The listed cases."""
        return (self.listed,)

    def own(self, case: AnyCase) -> WrapperCase | None:
        """The case, if it is a wrapper's."""
        return case if isinstance(case, WrapperCase) else None

    def applies(self, case: WrapperCase) -> bool:
        """Whether the case is like one of the requirement's listed cases."""
        return is_about(case, self.listed.cases)

    def controls(self, case: WrapperCase) -> tuple[tuple[str, WrapperCase], ...]:
        """Plain training, unless that is what the requirement is about."""
        control = plain_control(case, self.plain)
        return () if control is None else ((PLAIN_TRAINING, control),)

    def surroundings(self, case: WrapperCase) -> None:
        """Return None, because every rank has the wrapped module: there is nothing around it."""

    def instead(self, row: Requirement) -> AskedOfWrapper:
        """What another requirement would ask of the same cases."""
        return replace(self, row=row)

    def explaining(self, control: WrapperCase) -> tuple[Requirement, ...]:
        """The requirement about plain training."""
        return (wrapper_requirement(PLAINEST_OF_WRAPPERS),)

    def earlier(self, case: WrapperCase, *, controlled: bool) -> tuple[Requirement, ...]:
        """Empty: the requirements for wrappers are not ordered."""
        return ()

    def smallest(
        self,
        corpus: Drawable[WrapperCase],
        case: WrapperCase,
        outcome: Outcome,
        check: Callable[[WrapperCase], Outcome | None],
        *,
        budget: Budget,
    ) -> Smallest[WrapperCase]:
        """Shrink the case with Hypothesis, whether it was listed or found by the search."""
        ranks = tuple(sorted({one.ranks for one in self.listed.cases}))
        simpler = Smaller(target=case, ranks=ranks)
        return minimise(simpler, case, outcome, check, budget=budget, purpose="smaller")

    def heights(self, case: WrapperCase, *, worst_ratio: float | None) -> Mapping[str, float]:
        """Empty: the search over options has nothing to maximise."""
        return MappingProxyType({})

    def why_nothing_was_compared(self, cases: Iterable[WrapperCase]) -> str:
        """The same for every requirement: the listed cases contain all that it needs."""
        return (
            "nothing was compared: the ranks returned nothing that could be compared with the expected values"
        )
