"""Which judgement answers which requirement of chapter DPW, and about which cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

from msgspec import structs

from pipeconform.replication import judge
from pipeconform.replication.case import Pass, Step, Uneven, WrapperCase
from pipeconform.replication.judge import WrapperJudge
from pipeconform.wrapper import WrapOptions, WrapperClaims, WrapperFeature

__all__ = ["WRAPPER_JUDGEMENTS", "WrapperJudgement"]

F = WrapperFeature
_PLAIN = WrapperCase()
_TINY = 1e-6  # MiB: every parameter has a bucket of its own
_OPTIONS = {
    F.FIND_UNUSED: WrapOptions(find_unused=True),
    F.STATIC_GRAPH: WrapOptions(static_graph=True),
    F.BUCKETS: WrapOptions(bucket_mib=_TINY),
    F.BUCKET_VIEW: WrapOptions(bucket_view=True),
}
"""One option each, for the cases that are run under all that are claimed."""


@dataclass(frozen=True, kw_only=True)
class WrapperJudgement:
    """How one requirement is judged: on every case that `cases` gives, smallest first."""

    cases: Callable[[WrapperClaims], Iterator[WrapperCase]]
    judge: WrapperJudge = judge.is_right
    needs: frozenset[WrapperFeature] = frozenset()
    """What a wrapper must claim for the requirement to say anything about it."""

    def drawn(self, claims: WrapperClaims, *, seed: int) -> tuple[WrapperCase, ...]:
        """The cases inside the claims, each with values of its own; empty when what it needs is not claimed."""
        if not self.needs <= claims.features:
            return ()
        found = dict.fromkeys(case for case in self.cases(claims) if case.ranks <= claims.max_ranks)
        return tuple(structs.replace(case, seed=1000 * seed + i) for i, case in enumerate(found))


def _under(case: WrapperCase, claims: WrapperClaims, *features: WrapperFeature) -> Iterator[WrapperCase]:
    """The case as it is, and under each of these options that is claimed."""
    yield case
    for feature in features or tuple(_OPTIONS):
        if feature in claims.features:
            yield structs.replace(case, options=_and(case.options, _OPTIONS[feature]))


def _and(one: WrapOptions, other: WrapOptions) -> WrapOptions:
    changed = {name: getattr(other, name) for name in ("find_unused", "static_graph", "bucket_view")}
    more = {name: value for name, value in changed.items() if value}
    return replace(one, **more, bucket_mib=other.bucket_mib or one.bucket_mib)


def _mean(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(),))
    yield from _under(WrapperCase(steps=(Step(),) * 3), claims)
    yield WrapperCase(ranks=3)
    yield WrapperCase(ranks=1)


def _begin(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(own_values=True)
    yield WrapperCase(own_values=True, ranks=3, module="shared")
    if F.BROADCASTS_BUFFERS in claims.features:
        yield WrapperCase(own_values=True, module="normed")


def _dtypes(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from _under(WrapperCase(module="dtypes"), claims)


def _shared_and_frozen(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from _under(WrapperCase(module="shared"), claims)
    yield from _under(WrapperCase(module="frozen"), claims)


def _ignored(claims: WrapperClaims) -> Iterator[WrapperCase]:
    options = WrapOptions(ignored=("own", "own_seen"))
    yield from _under(WrapperCase(module="ignored", options=options), claims)


def _accumulated(claims: WrapperClaims) -> Iterator[WrapperCase]:
    inside, outside = Pass(sync="no"), Pass()
    yield WrapperCase(steps=(Step(passes=(inside, outside)),))
    interleaved = (
        Step(passes=(inside, Pass(sync="nested"), outside)),
        Step(),
        Step(passes=(outside, inside, outside)),
        Step(passes=(inside, outside), zero="keep"),
        Step(zero="zeros"),
    )
    yield from _under(WrapperCase(steps=interleaved), claims)
    yield WrapperCase(steps=interleaved, ranks=3)


def _forward_decides(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(), Step(passes=(Pass(sync="forward_inside"), Pass()))))
    yield WrapperCase(steps=(Step(), Step(passes=(Pass(sync="backward_inside"),))))


def _towers(*uses: tuple[str, ...]) -> tuple[Step, ...]:
    return tuple(Step(passes=(Pass(uses=one),)) for one in uses)


def _unused(claims: WrapperClaims) -> Iterator[WrapperCase]:
    found = WrapOptions(find_unused=True)
    for uses in (
        (("a", "a"), ("a", "a")),
        (("a", "b"), ("b", "b"), ("ab", "a")),
        (("ab", "ab"), ("", ""), ("a", "")),
    ):
        case = WrapperCase(module="towers", steps=_towers(*uses), options=found)
        yield from _under(case, claims, F.BUCKETS, F.BUCKET_VIEW)
        yield structs.replace(case, steps=tuple(structs.replace(step, zero="zeros") for step in case.steps))


def _static(claims: WrapperClaims) -> Iterator[WrapperCase]:
    static = WrapOptions(static_graph=True)
    for uses in (("a", "a"), ("a", "b"), ("ab", "ab")):
        case = WrapperCase(module="towers", steps=_towers(uses, uses, uses), options=static)
        yield from _under(case, claims, F.BUCKETS, F.BUCKET_VIEW)


def _unexpected(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="towers", steps=_towers(("a", "a"), ("a", "a")))


def _buckets(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for size in (_TINY, 1e-4, 100.0):
        options = WrapOptions(bucket_mib=size)
        yield from _under(WrapperCase(steps=(Step(),) * 4, options=options), claims, F.BUCKET_VIEW)
    yield WrapperCase(ranks=3, module="dtypes", steps=(Step(),) * 3, options=WrapOptions(bucket_mib=_TINY))


def _views(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for zeros in ("none", "zeros", "keep"):
        steps = tuple(Step(zero=zeros) for _ in range(3))
        case = WrapperCase(steps=steps, options=WrapOptions(bucket_view=True))
        yield from _under(case, claims, F.BUCKETS, F.FIND_UNUSED)


def _zeroed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(), Step(zero="zeros"), Step(zero="keep"), Step()))


def _buffers(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for module in ("normed", "assigned"):
        yield WrapperCase(module=module, steps=(Step(),) * 3)
        off = WrapOptions(broadcast_buffers=False)
        yield WrapperCase(module=module, steps=(Step(),) * 3, options=off)
    yield WrapperCase(module="normed", ranks=3)


def _hooks(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for hook in claims.compressions:
        yield from _under(WrapperCase(hook=hook), claims, F.BUCKETS, F.BUCKET_VIEW)


def _user_hook(claims: WrapperClaims) -> Iterator[WrapperCase]:
    steps = (Step(), Step(passes=(Pass(sync="no"), Pass())), Step())
    yield from _under(WrapperCase(hook="user", steps=steps), claims, F.BUCKETS, F.BUCKET_VIEW)


def _wrong_hooks(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for hook in ("not_callable", "one_argument", "annotated", "second"):
        yield WrapperCase(hook=hook)


def _join(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for counts in ((2, 1), (1, 3), (0, 2), (2, 2)):
        for initial in (True, False):
            case = WrapperCase(
                steps=(Step(),) * max(counts),
                uneven=Uneven(steps=counts, divide_by_initial=initial),
            )
            yield from _under(case, claims, F.BUCKETS)
    accumulated = (Step(passes=(Pass(sync="no"), Pass())),) * 2
    yield WrapperCase(ranks=3, steps=accumulated, uneven=Uneven(steps=(2, 0, 1), divide_by_initial=False))


def _early(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(),) * 2, uneven=Uneven(steps=(2, 1), raise_early=True))
    yield WrapperCase(steps=(Step(),) * 3, ranks=3, uneven=Uneven(steps=(1, 3, 3), raise_early=True))


def _two_forwards(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from _under(WrapperCase(steps=(Step(passes=(Pass(forwards=2),)),) * 2), claims)


def _checkpointed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from _under(WrapperCase(module="checkpoint", steps=(Step(),) * 3), claims)


def _reentrant(claims: WrapperClaims) -> Iterator[WrapperCase]:
    # not with the search for unused parameters: what such parts use does not show in the graph, as is documented
    case = WrapperCase(module="reentrant", steps=(Step(),) * 3)
    yield from _under(case, claims, F.STATIC_GRAPH, F.BUCKETS, F.BUCKET_VIEW)


def _channels_last(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from _under(WrapperCase(module="conv", steps=(Step(),) * 3), claims)


def _sparse(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="sparse")
    yield WrapperCase(module="sparse", ranks=3)


def _structured(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for form in ("tuple", "dict", "dataclass", "nested"):
        yield from _under(WrapperCase(form=form), claims, F.FIND_UNUSED, F.STATIC_GRAPH)


def _one(
    cases: Callable[[WrapperClaims], Iterator[WrapperCase]],
    *needs: WrapperFeature,
    by: WrapperJudge = judge.is_right,
) -> WrapperJudgement:
    return WrapperJudgement(cases=cases, judge=by, needs=frozenset(needs))


def _shapes(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(own_shape=True)
    yield WrapperCase(own_shape=True, ranks=3)


WRAPPER_JUDGEMENTS = MappingProxyType(
    {
        "DPW-1": _one(_mean),
        "DPW-2": _one(_begin, F.BROADCASTS, by=judge.begins_equal),
        "DPW-3": _one(_shapes, F.VERIFIES, by=judge.refuses_shapes),
        "DPW-4": _one(_dtypes, F.SEVERAL_DTYPES),
        "DPW-5": _one(_shared_and_frozen),
        "DPW-6": _one(_ignored, F.IGNORES),
        "DPW-7": _one(_accumulated, F.NO_SYNC),
        "DPW-8": _one(_forward_decides, F.NO_SYNC, F.FORWARD_DECIDES),
        "DPW-9": _one(_unused, F.FIND_UNUSED),
        "DPW-10": _one(_static, F.STATIC_GRAPH),
        "DPW-11": _one(_unexpected, F.NEEDS_ALL, by=judge.right_or_refused_by_name),
        "DPW-12": _one(_buckets, F.BUCKETS),
        "DPW-13": _one(_views, F.BUCKET_VIEW),
        "DPW-14": _one(_zeroed),
        "DPW-15": _one(_buffers, F.BROADCASTS_BUFFERS),
        "DPW-16": _one(_hooks, F.HOOKS),
        "DPW-17": _one(_user_hook, F.HOOKS, by=judge.hook_is_used),
        "DPW-18": _one(_wrong_hooks, F.HOOKS, by=judge.refuses_hook),
        "DPW-19": _one(_join, F.JOIN),
        "DPW-20": _one(_early, F.JOIN, by=judge.refuses_early_end),
        "DPW-21": _one(_two_forwards, F.TWO_FORWARDS),
        "DPW-22": _one(_checkpointed, F.CHECKPOINT),
        "DPW-23": _one(_reentrant, F.REENTRANT),
        "DPW-24": _one(_structured, F.STRUCTURED),
        "DPW-25": _one(_channels_last, F.CHANNELS_LAST),
        "DPW-26": _one(_sparse, F.SPARSE),
    }
)
"""By requirement."""
