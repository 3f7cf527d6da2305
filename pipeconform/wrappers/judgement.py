"""The judgement of a requirement about wrappers: its cases, its judge, and the claims that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from msgspec import structs

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.spec.catalogue import Level, Promise, Requirement, stated
from pipeconform.spec.lines import first_line
from pipeconform.wrapper import WrapOptions, WrapperClaims, WrapperDescription, WrapperFeature
from pipeconform.wrappers.judge import WrapperJudge

__all__ = ["TINY", "Cases", "WrapperJudgement", "requirement", "under", "why_not_judged"]

Cases = Callable[[WrapperClaims], Iterator[WrapperCase]]

TINY = 1e-6
"""A bucket size in MiB with which every parameter has a bucket of its own."""

_OPTIONS: Mapping[WrapperFeature, WrapOptions] = MappingProxyType(
    {
        WrapperFeature.FIND_UNUSED: WrapOptions(find_unused=True),
        WrapperFeature.STATIC_GRAPH: WrapOptions(static_graph=True),
        WrapperFeature.BUCKETS: WrapOptions(bucket_mib=TINY),
        WrapperFeature.BUCKET_VIEW: WrapOptions(bucket_view=True),
    }
)
"""The options for cases that run under every claimed option, one at a time."""


@dataclass(frozen=True, kw_only=True)
class WrapperJudgement:
    """How one requirement is judged: on every case of `cases`, smallest first."""

    requirement: Requirement
    cases: Cases
    every: Cases | None = None
    """The cases for a profile that runs whole grids of options instead of pairs."""
    judge: WrapperJudge
    needs: frozenset[WrapperFeature] = frozenset()
    """The features that a wrapper must claim to be judged by the requirement."""

    @property
    def line(self) -> int:
        """The line of its file on which the requirement begins."""
        return first_line(self.judge)

    def drawn(self, claims: WrapperClaims, *, seed: int, whole_grid: bool = False) -> tuple[WrapperCase, ...]:
        """The cases within the claims, each with a seed of its own; empty if a needed feature is not claimed."""
        if not self.needs <= claims.features:
            return ()
        cases = self.every if whole_grid and self.every is not None else self.cases
        found = dict.fromkeys(case for case in cases(claims) if max(case.world_sizes) <= claims.max_ranks)
        return tuple(structs.replace(case, seed=1000 * seed + i) for i, case in enumerate(found))


def requirement(
    identifier: str,
    *,
    title: str,
    level: Level,
    promise: Promise | tuple[Promise, ...],
    cases: Cases,
    every: Cases | None = None,
    needs: Iterable[WrapperFeature] = (),
) -> Callable[[WrapperJudge], WrapperJudgement]:
    """State a requirement: the function's docstring says what is demanded and why, its body judges it.

    See the fields of `WrapperJudgement` for the arguments.
    """

    def judgement(judge: WrapperJudge) -> WrapperJudgement:
        return WrapperJudgement(
            requirement=stated(judge, identifier, title=title, level=level, promise=promise),
            cases=cases,
            every=every,
            judge=judge,
            needs=frozenset(needs),
        )

    return judgement


def under(case: WrapperCase, claims: WrapperClaims, *features: WrapperFeature) -> Iterator[WrapperCase]:
    """The case unchanged, and under each claimed option of `features`, or of all features if none are given."""
    yield case
    for feature in features or tuple(_OPTIONS):
        if feature in claims.features:
            yield structs.replace(case, options=_and(case.options, _OPTIONS[feature]))


def _and(one: WrapOptions, other: WrapOptions) -> WrapOptions:
    changed = {name: getattr(other, name) for name in ("find_unused", "static_graph", "bucket_view")}
    more = {name: value for name, value in changed.items() if value}
    return replace(one, **more, bucket_mib=other.bucket_mib or one.bucket_mib)


def why_not_judged(judgement: WrapperJudgement, description: WrapperDescription) -> str:
    """Why the requirement is not judged: what the wrapper does not claim or cannot run here; empty if it is judged."""
    lacking = sorted(judgement.needs - description.claims.features)
    elsewhere = [name for name in lacking if name in description.claims.elsewhere]
    if elsewhere:
        reasons = ", ".join(f"{name} ({description.claims.elsewhere[name]})" for name in elsewhere)
        return f"{description.name} cannot run it here: {reasons}"
    return f"{description.name} does not claim {', '.join(lacking)}" if lacking else ""
