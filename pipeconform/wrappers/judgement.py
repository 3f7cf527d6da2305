"""How a requirement about wrappers is judged: its cases, its judge, and what has to be claimed for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from msgspec import structs

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.spec.catalogue import Level, Promise, Requirement, stated
from pipeconform.wrapper import WrapOptions, WrapperClaims, WrapperDescription, WrapperFeature
from pipeconform.wrappers.judge import WrapperJudge

__all__ = ["TINY", "Cases", "WrapperJudgement", "requirement", "under", "why_not_judged"]

Cases = Callable[[WrapperClaims], Iterator[WrapperCase]]

TINY = 1e-6
"""MiB: every parameter has a bucket of its own."""

_OPTIONS: Mapping[WrapperFeature, WrapOptions] = MappingProxyType(
    {
        WrapperFeature.FIND_UNUSED: WrapOptions(find_unused=True),
        WrapperFeature.STATIC_GRAPH: WrapOptions(static_graph=True),
        WrapperFeature.BUCKETS: WrapOptions(bucket_mib=TINY),
        WrapperFeature.BUCKET_VIEW: WrapOptions(bucket_view=True),
    }
)
"""One option each, for the cases that are run under all that are claimed."""


@dataclass(frozen=True, kw_only=True)
class WrapperJudgement:
    """How one requirement is judged: on every case that `cases` gives, smallest first."""

    requirement: Requirement
    cases: Cases
    every: Cases | None = None
    """Instead, for a profile that runs whole grids of options and not only pairs of them."""
    judge: WrapperJudge
    needs: frozenset[WrapperFeature] = frozenset()
    """What a wrapper must claim for the requirement to say anything about it."""

    @property
    def line(self) -> int:
        """The line of its file at which the requirement begins."""
        return inspect.getsourcelines(self.judge)[1]

    def drawn(self, claims: WrapperClaims, *, seed: int, whole_grid: bool = False) -> tuple[WrapperCase, ...]:
        """The cases inside the claims, each with values of its own; empty when what it needs is not claimed."""
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

    The fields of `WrapperJudgement` say what the arguments mean.
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
    """The case as it is, and under each of these options (without any: of all) that is claimed."""
    yield case
    for feature in features or tuple(_OPTIONS):
        if feature in claims.features:
            yield structs.replace(case, options=_and(case.options, _OPTIONS[feature]))


def _and(one: WrapOptions, other: WrapOptions) -> WrapOptions:
    changed = {name: getattr(other, name) for name in ("find_unused", "static_graph", "bucket_view")}
    more = {name: value for name, value in changed.items() if value}
    return replace(one, **more, bucket_mib=other.bucket_mib or one.bucket_mib)


def why_not_judged(judgement: WrapperJudgement, description: WrapperDescription) -> str:
    """Empty where the requirement is judged; otherwise what the wrapper does not claim, or cannot run here, and why."""
    lacking = sorted(judgement.needs - description.claims.features)
    elsewhere = [name for name in lacking if name in description.claims.elsewhere]
    if elsewhere:
        reasons = ", ".join(f"{name} ({description.claims.elsewhere[name]})" for name in elsewhere)
        return f"{description.name} cannot run it here: {reasons}"
    return f"{description.name} does not claim {', '.join(lacking)}" if lacking else ""
