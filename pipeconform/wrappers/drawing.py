"""Draws wrapper cases: the listed cases of a requirement, combinations of these, and smaller versions of a case.

The listed cases define what a requirement is about. The search beyond them freely combines the properties in which they
differ: sizes of buckets, views of buckets, the treatment of unused parameters, numbers of ranks, and seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import msgspec
from hypothesis import reject
from hypothesis import strategies as st
from msgspec import structs

from pipeconform.case.seeds import seed_of
from pipeconform.case.wrapper_case import Step, Uneven, WrapperCase
from pipeconform.errors import BadCaseError
from pipeconform.spec import STANDARD_VERSION
from pipeconform.wrapper import WrapOptions

__all__ = ["Listed", "Smaller", "is_about"]

T = TypeVar("T")
_MOST_SEED = 2**16
_USUAL = 24
"""The weight of a case's own value against each simpler one, so that the case itself is soon drawn."""
_ATTEMPTS = 400
"""How many cases are drawn to reach the case itself; those before it are not executed."""
_BUCKETS = (1e-6, 1e-5, 1e-4, 1e-3, 1.0, 100.0)
"""Sizes in MiB for cases that vary them: from one bucket per parameter to a single bucket."""
_TOGETHER = ("find_unused", "static_graph")
"""Options that are combined only as in a listed case of the same module: one may make the other pointless, and a module
with parameters that no forward uses needs one of them."""
_PLAIN_STEP = Step()  # holds the default object, which the case's JSON leaves out
_STRUCTURE = ("ranks", "steps", "uneven", "options", "seed", "regroup")
"""Fields that have rules of their own for becoming simpler, or that stay unchanged."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """The cases of one requirement within a wrapper's claims, and the search beyond them."""

    requirement: str
    cases: tuple[WrapperCase, ...]
    seed: int

    @property
    def size(self) -> int:
        """The number of listed cases."""
        return len(self.cases)

    def hypothesis_seed(self, purpose: str) -> int:
        """The seed for this purpose, from the run's seed, the standard's version and the requirement."""
        return seed_of(self.seed, STANDARD_VERSION, self.requirement, purpose)

    def strategy(self) -> st.SearchStrategy[WrapperCase]:
        """Draw listed cases with the options of other listed cases and new seeds."""
        return _varied(self.cases)

    def drawn(self) -> tuple[WrapperCase, ...]:
        """The listed cases."""
        return self.cases


@st.composite
def _varied(draw: st.DrawFn, cases: Sequence[WrapperCase]) -> WrapperCase:
    base = draw(st.sampled_from(cases))
    every = [one.options for one in cases]
    together = list(dict.fromkeys(_together(one.options) for one in cases if _core(one) == _core(base)))
    chosen: dict[str, Any] = dict(zip(_TOGETHER, draw(st.sampled_from(together)), strict=True))
    options = replace(base.options, **chosen)
    if len({one.bucket_mib for one in every}) > 1:
        sizes = dict.fromkeys([*(one.bucket_mib for one in every), *_BUCKETS])
        options = replace(options, bucket_mib=draw(st.sampled_from(list(sizes))))
    if len({one.bucket_view for one in every}) > 1:
        options = replace(options, bucket_view=draw(st.booleans()))
    case = structs.replace(base, options=options, seed=draw(st.integers(0, _MOST_SEED)))
    plain = base.uneven is None and not any(_speaks_of_ranks(step) for step in base.steps)
    if plain and base.regroup is None and base.options.sharding is None:
        ranks = sorted({one.ranks for one in cases})
        case = structs.replace(case, ranks=draw(st.sampled_from(ranks)))
    return case


def _speaks_of_ranks(step: Step) -> bool:
    """Whether a step refers to single ranks, so that the number of ranks cannot change."""
    return bool(any(one.uses for one in step.passes) or step.overflow is not None or step.late is not None)


def is_about(case: WrapperCase, listed: Iterable[WrapperCase]) -> bool:
    """Whether a requirement with these listed cases applies to a case.

    The case may differ from a listed one in its steps, its seed, and the properties in which listed cases differ:
    ranks, sizes of buckets, views of buckets, the treatment of unused parameters.
    """
    cases = tuple(listed)
    sized = {one.options.bucket_mib is None for one in cases}
    return (
        (_core(case), _together(case.options)) in ((_core(one), _together(one.options)) for one in cases)
        and case.ranks in {one.ranks for one in cases}
        and (case.options.bucket_mib is None) in sized
        and case.options.bucket_view in {one.options.bucket_view for one in cases}
        and _ends_apart(case.uneven) in {_ends_apart(one.uneven) for one in cases}
    )


def _together(options: WrapOptions) -> tuple[bool, ...]:
    return tuple(getattr(options, name) for name in _TOGETHER)


def _core(case: WrapperCase) -> tuple[Any, ...]:
    """The properties of a case that its requirement is about, which never change."""
    usual: dict[str, Any] = dict.fromkeys(_TOGETHER, False)
    options = replace(case.options, bucket_mib=None, bucket_view=False, **usual)
    kept = [getattr(case, name) for name in WrapperCase.__struct_fields__ if name not in _STRUCTURE]
    return (*kept, options, case.regroup is None)


def _ends_apart(uneven: Uneven | None) -> bool | None:
    """Whether ranks run different numbers of steps; None without ``join``."""
    return None if uneven is None else len(set(uneven.steps)) > 1


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """A case and all simpler ones: fewer ranks, steps and passes, and defaults for options and values."""

    target: WrapperCase
    ranks: tuple[int, ...]
    """The numbers of ranks that simpler cases may have."""

    @property
    def size(self) -> int:
        """How many cases are drawn to reach the case itself."""
        return _ATTEMPTS

    def hypothesis_seed(self, purpose: str) -> int:
        """The seed for this purpose, from the case only, so that it shrinks in the same way in every run."""
        return seed_of(STANDARD_VERSION, self.target.digest, purpose)

    def strategy(self) -> st.SearchStrategy[WrapperCase]:
        """Draw the case and simpler ones; shrinks toward the simplest."""
        return _simpler(self.target, self.ranks)

    def drawn(self) -> tuple[WrapperCase, ...]:
        """The case itself."""
        return (self.target,)


@st.composite
def _simpler(draw: st.DrawFn, target: WrapperCase, fewer: tuple[int, ...]) -> WrapperCase:
    def either(simple: Iterable[T], usual: T) -> T:
        """One of the simpler values, or usually the case's own."""
        found = [one for one in simple if one != usual]
        return draw(st.sampled_from([*found, *[usual] * _USUAL * len(found)])) if found else usual

    changes: dict[str, Any] = {"seed": either([0], target.seed)}
    ranks = target.ranks
    # a sharding determines the number of ranks of a copy and of an expert
    bound = target.regroup is not None or target.options.sharding is not None
    bound = bound or any(step.overflow is not None or step.late is not None for step in target.steps)
    if not bound:
        ranks = changes["ranks"] = either((one for one in fewer if one < target.ranks), target.ranks)
    for name in WrapperCase.__struct_fields__:
        if name not in _STRUCTURE:
            changes[name] = either([_default(WrapperCase, name)], getattr(target, name))
    options = WrapOptions(
        **{
            field.name: either([field.default], getattr(target.options, field.name))
            for field in fields(WrapOptions)
        }
    )
    usual = _default(WrapperCase, "options")  # the default object, which the case's JSON leaves out
    changes["options"] = usual if options == usual else options
    uneven = target.uneven
    kept = [i for i in range(len(target.steps)) if target.regroup is not None or either([False], True)] or [0]
    steps = tuple(_simpler_step(either, target.steps[i], ranks) for i in kept)
    changes["steps"] = tuple(_PLAIN_STEP if step == _PLAIN_STEP else step for step in steps)
    if uneven is not None:
        counts = tuple(sum(i < count for i in kept) for count in uneven.steps[:ranks])
        changes["uneven"] = structs.replace(uneven, steps=counts)
    try:
        return structs.replace(target, **changes)
    except BadCaseError:
        reject()


def _simpler_step(either: Any, step: Step, ranks: int) -> Step:
    """Draw a simpler step; the last pass stays, because it decides about reduction, but earlier passes may go."""
    *before, last = step.passes
    kept = [one for one in before if either([False], True)]
    passes = tuple(
        structs.replace(
            one,
            sync=either(["yes"], one.sync),
            forwards=either([1], one.forwards),
            uses=one.uses[:ranks],
        )
        for one in (*kept, last)
    )
    changes: dict[str, Any] = {
        name: either([_default(Step, name)], getattr(step, name))
        for name in Step.__struct_fields__
        if name != "passes"
    }
    return Step(passes=passes, **changes)


def _default(kind: type[msgspec.Struct], name: str) -> Any:
    found = next(field for field in structs.fields(kind) if field.name == name)
    return found.default if found.default is not msgspec.NODEFAULT else found.default_factory()
