"""The cases of a sharding wrapper's options: a few that cover all pairs, or every combination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from msgspec import structs

from pipeconform.case.wrapper_case import Pass, Slow, Step, WrapperCase
from pipeconform.sharding import Refusal, Sharding
from pipeconform.wrapper import FloatName, WrapOptions, WrapperClaims
from pipeconform.wrapper_tools.grids import covering, every_point

__all__ = [
    "delayed_cases",
    "every_case",
    "nested_cases",
    "offloaded_cases",
    "pairwise_cases",
    "refused_cases",
    "states_between_worlds",
]

_PRECISIONS: dict[str, tuple[FloatName | None, FloatName | None]] = {
    "same": (None, None),
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "reduce_float32": (None, "float32"),
}
_EXPERTS = {2: ((0,), (1,)), 3: ((0, 2), (1,)), 4: ((0, 2), (1, 3))}
_STEPS = 3


def axes_of(claims: WrapperClaims) -> dict[str, tuple[Any, ...]]:
    """The claimed values of every axis, the plainest first."""
    offered = claims.sharding
    return {
        "module": offered.modules,
        "strategy": offered.strategies,
        "nesting": offered.nestings,
        # beyond the claims nothing is drawn, but the plainest case has a number of ranks all the same
        "ranks": tuple(number for number in (2, 3, 4) if number <= claims.max_ranks) or (2,),
        "precision": offered.precisions,
        "optimizer": ("sgd", "adam"),
        "forward_prefetch": _switch(offered.forward_prefetch),
        "backward_prefetch": _switch(offered.backward_prefetch),
        "original_parameters": offered.original_parameters,
        "accumulate": _switch(offered.accumulates),
        "compiled": _switch(offered.compiled),
    }


def _switch(claimed: bool) -> tuple[bool, ...]:
    return (False, True) if claimed else (False,)


def pairwise_cases(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """Cases that cover every pair of claimed values of two options."""
    points = covering(axes_of(claims), allowed=_allowed(claims))
    for point in sorted(points, key=lambda one: (one["compiled"], one["ranks"])):  # the cheap ones first
        yield _case(point)


def every_case(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """Cases for every combination of claimed values."""
    for point in every_point(axes_of(claims), allowed=_allowed(claims)):
        yield _case(point)


def offloaded_cases(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """Cases with shards in the host's memory, with every claimed strategy, optimizer and precision."""
    axes = {name: axes_of(claims)[name] for name in ("strategy", "precision", "optimizer", "accumulate")}
    for point in covering(axes):
        ranks = 4 if point["strategy"] == "hybrid" else 2
        yield _case({**_plainest(claims), **point, "ranks": ranks, "offload": True})


def refused_cases(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """One otherwise plain case for every combination that is documented as refused."""
    for refusal in claims.sharding.refusals:
        yield _case({**_plainest(claims), **_values(refusal)})


def delayed_cases(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """Cases with a late last rank: with reductions or gathering, after the loss, or before parameters are freed."""
    offered = claims.sharding
    inside = {**_plainest(claims), "nesting": offered.nestings[-1]}
    ahead = {
        **inside,
        "forward_prefetch": offered.forward_prefetch,
        "backward_prefetch": offered.backward_prefetch,
    }
    slow: Slow
    for slow in ("reduction", "gathering", "loss", "freeing"):
        for point in (inside, ahead):
            yield structs.replace(_case(point), slow=slow)
    for strategy in offered.strategies[1:]:
        point = {**_plainest(claims), "strategy": strategy, "ranks": 4 if strategy == "hybrid" else 2}
        yield structs.replace(_case(point), slow="reduction")


def states_between_worlds(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """Cases in which one number of ranks saves and another loads, with every claimed strategy.

    The sizes are chosen so that the shards of the two worlds begin and end at different elements and have padding.
    """
    offered = claims.sharding
    plain = {**_plainest(claims), "module": "few" if "few" in offered.modules else offered.modules[0]}
    for ranks, others in ((2, 3), (3, 2), (2, 1)):
        yield structs.replace(_case({**plain, "ranks": ranks}), loaded_by=others)
    inside = {**plain, "nesting": offered.nestings[-1]}
    for strategy in offered.strategies:
        point = {
            **inside,
            "strategy": strategy,
            "ranks": 4,
            "original_parameters": offered.original_parameters[-1],
        }
        if not any(refusal.matches(point) for refusal in offered.refusals):
            yield structs.replace(_case(point), loaded_by=2)


def nested_cases(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """Cases with a single unit, and with units inside units."""
    ranks, nestings = min(3, claims.max_ranks), claims.sharding.nestings
    for nesting in dict.fromkeys((nestings[0], nestings[-1])):
        yield _case({**_plainest(claims), "nesting": nesting, "ranks": ranks})


def _plainest(claims: WrapperClaims) -> dict[str, Any]:
    return {name: values[0] for name, values in axes_of(claims).items()}


def _allowed(claims: WrapperClaims) -> Any:
    def allowed(point: dict[str, Any]) -> bool:
        # hybrid sharding needs two pairs of ranks; four ranks are costly, and nothing else needs them
        fits = (point["ranks"] == 4) == (point["strategy"] == "hybrid")
        # compiling takes seconds in every process: only with two ranks
        fits = fits and (not point["compiled"] or point["ranks"] == 2)
        return fits and not any(refusal.matches(point) for refusal in claims.sharding.refusals)

    return allowed


def _values(refusal: Refusal) -> dict[str, Any]:
    told = dict(refusal.combination)
    read: dict[str, Any] = {"True": True, "False": False}
    return {axis: int(text) if axis == "ranks" else read.get(text, text) for axis, text in told.items()}


def _case(point: Mapping[str, Any]) -> WrapperCase:
    from pipeconform.wrappers.sharded_modules import APART

    parameters, reduction = _PRECISIONS[point["precision"]]
    sharding = Sharding(
        strategy=point["strategy"],
        forward_prefetch=point["forward_prefetch"],
        backward_prefetch=point["backward_prefetch"],
        offload=point.get("offload", False),
        original_parameters=point["original_parameters"],
        nesting=point["nesting"],
    )
    if point["module"] == "experts":
        sharding = replace(sharding, expert_groups=_EXPERTS[point["ranks"]])
    options = WrapOptions(
        sharding=sharding,
        param_dtype=parameters,
        reduce_dtype=reduction,
        ignored=APART if point["module"] == "apart" else (),
    )
    passes = (Pass(sync="no"), Pass()) if point["accumulate"] else (Pass(),)
    steps = [Step(passes=passes) for _ in range(_STEPS)]
    return WrapperCase(
        module=point["module"],
        ranks=point["ranks"],
        options=options,
        steps=tuple(steps),
        optimizer=point["optimizer"],
        compiled=point["compiled"],
    )
