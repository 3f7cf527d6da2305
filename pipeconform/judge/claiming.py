"""What an adapter would have to claim in addition to be judged by a requirement, as lines to write.

What a requirement and its subjects say that they need is added first. Where a subject has a condition of its own,
single additions to the claims are tried, alone and together, until it is met.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, ErrorContract, Feature, Placement, ScheduleClaim
from pipeconform.judge.judgement import Judgement
from pipeconform.schedule import families
from pipeconform.suggestions import nearest
from pipeconform.wrapper import WrapperFeature

__all__ = ["PLAINEST", "Addition", "additions_for", "lines_of", "wrapper_addition"]

PLAINEST = Capabilities(schedules=(ScheduleClaim(name="GPipe"),))
"""The claims of an adapter that claims as little as possible."""

_MOST_TOGETHER = 3
_MOST_WITH_FEATURES = 2
_MORE_STAGES = 2
_MORE_RANKS = 8
_DTYPES = ("float32", "bfloat16")
_SIZES = {"max_tensors": 4, "max_ndim": 3, "inputs": 4}
_FEATURES = "features=frozenset"

Claims: TypeAlias = tuple[ScheduleClaim, Capabilities]


@dataclass(frozen=True, kw_only=True)
class Addition:
    """One thing to claim in addition."""

    place: tuple[str, ...]
    """What the text is written in, from outside, such as ``("Capabilities", "boundary=BoundaryClaim")``."""
    text: str
    """An argument, such as ``max_tensors=2``, or a feature."""
    meaning: str = ""
    """What a feature says about the implementation."""
    to: Callable[[Claims], Claims] = dataclasses.field(compare=False, repr=False)
    """Adds it."""


def additions_for(
    judgement: Judgement, capabilities: Capabilities, errors: ErrorContract | None = None
) -> tuple[Addition, ...] | None:
    """The fewest additions with which a requirement is judged under one of the claimed schedules.

    Empty if nothing is missing. None if no few additions are enough, as for an engine of another kind.
    """
    promise = (_PROMISE,) if judgement.promised and not (errors and errors.promises) else ()
    found = [
        one
        for claim in capabilities.schedules
        for focus in Focus
        if focus in judgement.wanted
        if (one := _for_focus(judgement, focus, (claim, capabilities))) is not None
    ]
    fewest = min(found, key=len, default=None)
    return None if fewest is None else (*fewest, *promise)


def lines_of(additions: Iterable[Addition]) -> tuple[str, ...]:
    """The additions as lines to write; those to one class share a line, which says what it is written in."""
    by_place: dict[tuple[str, ...], list[str]] = {}
    given = tuple(additions)
    for one in given:
        made = (*one.place, one.text.removesuffix("()"))
        if not any(other.place == made for other in given):  # the line of what is inside it makes it, too
            by_place.setdefault(one.place, []).append(one.text)
    return tuple(_line(place, texts) for place, texts in by_place.items())


def _line(place: tuple[str, ...], texts: list[str]) -> str:
    outer, *inner = place
    line = ", ".join(texts)
    for name in reversed(inner):
        line = f"{name}({{…, {line}}})" if name == _FEATURES else f"{name}(…, {line})"
    return f"in {outer}: {line}"


# ------------------------------------------------------------------ the search


def _for_focus(judgement: Judgement, focus: Focus, claims: Claims) -> tuple[Addition, ...] | None:
    """The fewest additions with which cases of one focus are drawn under one schedule."""
    needed = tuple(_needed(judgement, focus, claims))
    start = _with(claims, needed)
    for number in range(_MOST_TOGETHER + 1):
        single = tuple(_possible(start, features=number <= _MOST_WITH_FEATURES)) if number else ()
        for chosen in itertools.combinations(single, number):
            if is_claimed(focus, *_with(start, chosen)) and judgement.foci(*_with(start, chosen)):
                return (*needed, *chosen)
    return None


def _with(claims: Claims, additions: Iterable[Addition]) -> Claims:
    for one in additions:
        claims = one.to(claims)
    return claims


def _needed(judgement: Judgement, focus: Focus, claims: Claims) -> Iterator[Addition]:
    """What the requirement and the subject say that they need."""
    claim, capabilities = claims
    subject = SUBJECTS[focus]
    here = capabilities.under(claim).features
    yield from (_feature(one, claims) for one in Feature if one in (judgement.needs | subject.needs) - here)
    wanted = {
        "trains": judgement.trains or subject.trains or subject.mistaken or subject.is_parallel,
        "split_backward": judgement.splits,
        "evaluates": judgement.evaluates,
    }
    yield from (
        _of_schedule(claims, name, True)
        for name, is_wanted in wanted.items()
        if is_wanted and not getattr(claim, name)
    )
    if judgement.named and claim.family is None:
        mirrored = claim.placement is Placement.MIRROR
        named = [one for one in families() if (one.placement == "bidirectional") == mirrored]
        titles = {one.title: one.name for one in named}
        yield _of_schedule(
            claims,
            "family",
            next(iter(nearest(claim.name, titles.values(), titles)), "dualpipe" if mirrored else "gpipe"),
        )
    forms = {"whole": ("tracing",), "replicas": ("data_parallel",)}
    names = {**forms, "tensor parallel": ("sub_groups", "tensor_parallel")}.get(subject.form, ())
    yield from (
        one for one in _possible(claims) if one.place == ("Capabilities",) and one.text.split("=")[0] in names
    )


# ------------------------------------------------------------------ single additions


def _possible(claims: Claims, *, features: bool = True) -> Iterator[Addition]:
    """Everything that one argument can add; features only if asked for, because there are many."""
    claim, capabilities = claims
    here = capabilities.under(claim).features
    yield from (_feature(one, claims) for one in Feature if features and one not in here)
    yield from _of_fields(capabilities, ("Capabilities",))
    if claim.boundary is not None:
        place = (_named(claims), "boundary=BoundaryClaim")
        yield from _of_fields(claim.boundary, place, ("boundary",), of_schedule=True)
    if not claim.split_backward:
        yield _of_schedule(claims, "split_backward", True)
    if claim.split_backward and claim.split_weights != "all":
        yield _of_schedule(claims, "split_weights", "all")
    if not claim.takes_placement:
        yield _of_schedule(claims, "takes_placement", True)
    if max(claim.stages_per_rank) == 1:
        yield _of_schedule(claims, "stages_per_rank", (1, _MORE_STAGES))
    if claim.max_ranks == 1:
        yield _of_schedule(claims, "max_ranks", _MORE_RANKS)


def _of_fields(
    value: Any, place: tuple[str, ...], path: tuple[str, ...] = (), *, of_schedule: bool = False
) -> Iterator[Addition]:
    """Additions to the fields of a claim: what is False or absent becomes claimed, lists and sizes grow.

    `path` leads to `value`, from the capabilities or from the claim of the schedule.
    """
    hints = get_type_hints(type(value))
    for name in sorted(
        hints, key=_SIZES.__contains__
    ):  # sizes last: what needs another container needs no size
        found = getattr(value, name)
        for more in _more(name, found, hints[name]):
            text = (
                f"{name}={type(more).__name__}()"
                if dataclasses.is_dataclass(more)
                else f"{name}={_written(more)}"
            )
            to = functools.partial(_set_of_schedule if of_schedule else _set, (*path, name), more)
            yield Addition(place=place, text=text, to=to)
        if dataclasses.is_dataclass(found):
            inner = (*place, f"{name}={type(found).__name__}")
            yield from _of_fields(found, inner, (*path, name), of_schedule=of_schedule)


def _more(name: str, value: Any, hint: Any) -> Iterator[Any]:
    """Larger values of a field, by its type."""
    if value is False:
        yield True
    elif value is None and (kinds := [one for one in get_args(hint) if dataclasses.is_dataclass(one)]):
        yield from (kind() for kind in kinds)  # type: ignore[operator]  # a class of claims, which needs no argument
    elif get_origin(hint) is tuple and get_origin(get_args(hint)[0]) is Literal:
        yield from ((*value, one) for one in get_args(get_args(hint)[0]) if one not in value)
    elif name == "dtypes":
        yield from ((*value, one) for one in _DTYPES if one not in value)
    elif name in _SIZES and value is not None and value < _SIZES[name]:
        yield _SIZES[name]


def _written(value: object) -> str:
    return repr(value).replace("'", '"')


def _set(path: tuple[str, ...], value: Any, claims: Claims) -> Claims:
    return claims[0], _replaced(claims[1], path, value)


def _set_of_schedule(path: tuple[str, ...], value: Any, claims: Claims) -> Claims:
    return _replaced(claims[0], path, value), claims[1]


def _replaced(claim: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *inner = path
    return replace(claim, **{name: _replaced(getattr(claim, name), tuple(inner), value) if inner else value})


def _of_schedule(claims: Claims, name: str, value: Any) -> Addition:
    return Addition(
        place=(_named(claims),),
        text=f"{name}={_written(value)}",
        to=lambda claims: (replace(claims[0], **{name: value}), claims[1]),
    )


def _named(claims: Claims) -> str:
    return f'ScheduleClaim(name="{claims[0].name}", …)'


def _feature(feature: Feature, claims: Claims) -> Addition:
    """Claiming a feature; one that is claimed and lacked by the schedule is no longer lacked."""
    if feature in claims[0].lacks:
        return Addition(
            place=(_named(claims),),
            text=f"Feature.{feature.name} no longer in lacks",
            meaning=feature.meaning,
            to=lambda claims: (
                replace(claims[0], lacks=claims[0].lacks - {feature}),
                replace(claims[1], features=claims[1].features | {feature}),
            ),
        )
    return Addition(
        place=("Capabilities", _FEATURES),
        text=f"Feature.{feature.name}",
        meaning=feature.meaning,
        to=lambda claims: (claims[0], replace(claims[1], features=claims[1].features | {feature})),
    )


_PROMISE = Addition(
    place=("Description", "errors=ErrorContract"),
    text='promises={MistakeKind.BATCH: ("ValueError",)}',
    meaning="",
    to=lambda claims: claims,
)


def wrapper_addition(feature: WrapperFeature) -> Addition:
    """A feature to claim for a data-parallel wrapper."""
    return Addition(
        place=("WrapperClaims", _FEATURES),
        text=f"WrapperFeature.{feature.name}",
        meaning=feature.meaning,
        to=lambda claims: claims,
    )
