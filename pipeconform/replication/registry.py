"""Which judgement answers which requirement of chapter DPW, and about which cases."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from msgspec import structs

from pipeconform.case.wrapper_case import Pass, Step, Uneven, WrapperCase
from pipeconform.replication import judge
from pipeconform.replication.judgement import TINY, WrapperJudgement, judged, under
from pipeconform.replication.modules import NO_PARAMETER
from pipeconform.replication.registry_deferred import DEFERRED_JUDGEMENTS
from pipeconform.replication.registry_sharding import SHARDING_JUDGEMENTS
from pipeconform.replication.registry_training import TRAINING_JUDGEMENTS
from pipeconform.wrapper import WrapOptions, WrapperClaims, WrapperFeature

__all__ = ["WRAPPER_JUDGEMENTS", "WrapperJudgement"]

F = WrapperFeature
_PLAIN = WrapperCase()


def _mean(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(),))
    yield from under(WrapperCase(steps=(Step(),) * 3), claims)
    yield WrapperCase(ranks=3)
    yield WrapperCase(ranks=1)


def _begin(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(own_values=True)
    yield WrapperCase(own_values=True, ranks=3, module="shared")
    if F.BROADCASTS_BUFFERS in claims.features:
        yield WrapperCase(own_values=True, module="normed")


def _dtypes(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="dtypes"), claims)


def _shared_and_frozen(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="shared"), claims)
    yield from under(WrapperCase(module="frozen"), claims)


def _ignored(claims: WrapperClaims) -> Iterator[WrapperCase]:
    options = WrapOptions(ignored=("own", "own_seen"))
    yield from under(WrapperCase(module="ignored", options=options), claims)


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
    yield from under(WrapperCase(steps=interleaved), claims)
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
        (("ab", NO_PARAMETER), (NO_PARAMETER, "a"), (NO_PARAMETER, NO_PARAMETER)),
    ):
        case = WrapperCase(module="towers", steps=_towers(*uses), options=found)
        yield from under(case, claims, F.BUCKETS, F.BUCKET_VIEW)
        yield structs.replace(case, steps=tuple(structs.replace(step, zero="zeros") for step in case.steps))


def _static(claims: WrapperClaims) -> Iterator[WrapperCase]:
    static = WrapOptions(static_graph=True)
    for uses in (("a", "a"), ("a", "b"), ("ab", "ab")):
        case = WrapperCase(module="towers", steps=_towers(uses, uses, uses), options=static)
        yield from under(case, claims, F.BUCKETS, F.BUCKET_VIEW)


def _unexpected(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="towers", steps=_towers(("a", "a"), ("a", "a")))


def _buckets(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for size in (TINY, 1e-4, 100.0):
        options = WrapOptions(bucket_mib=size)
        yield from under(WrapperCase(steps=(Step(),) * 4, options=options), claims, F.BUCKET_VIEW)
    yield WrapperCase(ranks=3, module="dtypes", steps=(Step(),) * 3, options=WrapOptions(bucket_mib=TINY))


def _views(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for zeros in ("none", "zeros", "keep"):
        steps = tuple(Step(zero=zeros) for _ in range(3))
        case = WrapperCase(steps=steps, options=WrapOptions(bucket_view=True))
        yield from under(case, claims, F.BUCKETS, F.FIND_UNUSED)


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
        yield from under(WrapperCase(hook=hook), claims, F.BUCKETS, F.BUCKET_VIEW)


def _user_hook(claims: WrapperClaims) -> Iterator[WrapperCase]:
    steps = (Step(), Step(passes=(Pass(sync="no"), Pass())), Step())
    yield from under(WrapperCase(hook="user", steps=steps), claims, F.BUCKETS, F.BUCKET_VIEW)


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
            yield from under(case, claims, F.BUCKETS)
    accumulated = (Step(passes=(Pass(sync="no"), Pass())),) * 2
    yield WrapperCase(ranks=3, steps=accumulated, uneven=Uneven(steps=(2, 0, 1), divide_by_initial=False))


def _early(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(),) * 2, uneven=Uneven(steps=(2, 1), raise_early=True))
    yield WrapperCase(steps=(Step(),) * 3, ranks=3, uneven=Uneven(steps=(1, 3, 3), raise_early=True))


def _two_forwards(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(steps=(Step(passes=(Pass(forwards=2),)),) * 2), claims)


def _checkpointed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="checkpoint", steps=(Step(),) * 3), claims)
    for feature, options in (
        (F.FIND_UNUSED, WrapOptions(find_unused=True)),
        (F.STATIC_GRAPH, WrapOptions(static_graph=True)),
    ):
        if feature in claims.features:
            yield WrapperCase(module="checkpoint_unused", steps=(Step(),) * 3, options=options)


def _reentrant(claims: WrapperClaims) -> Iterator[WrapperCase]:
    # not with the search for unused parameters: what such parts use does not show in the graph, as is documented
    case = WrapperCase(module="reentrant", steps=(Step(),) * 3)
    yield from under(case, claims, F.STATIC_GRAPH, F.BUCKETS, F.BUCKET_VIEW)
    if F.STATIC_GRAPH in claims.features:
        options = WrapOptions(static_graph=True)
        yield WrapperCase(module="reentrant_unused", steps=(Step(),) * 3, options=options)


def _channels_last(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="conv", steps=(Step(),) * 3), claims)


def _sparse(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="sparse")
    yield WrapperCase(module="sparse", ranks=3)


def _structured(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for form in ("tuple", "dict", "dataclass", "nested"):
        yield from under(WrapperCase(form=form), claims, F.FIND_UNUSED, F.STATIC_GRAPH)


def _shapes(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(own_shape=True)
    yield WrapperCase(own_shape=True, ranks=3)


WRAPPER_JUDGEMENTS = MappingProxyType(
    {
        "DPW-1": judged(_mean),
        "DPW-2": judged(_begin, F.BROADCASTS, by=judge.begins_equal),
        "DPW-3": judged(_shapes, F.VERIFIES, by=judge.refuses_shapes),
        "DPW-4": judged(_dtypes, F.SEVERAL_DTYPES),
        "DPW-5": judged(_shared_and_frozen),
        "DPW-6": judged(_ignored, F.IGNORES),
        "DPW-7": judged(_accumulated, F.NO_SYNC),
        "DPW-8": judged(_forward_decides, F.NO_SYNC, F.FORWARD_DECIDES),
        "DPW-9": judged(_unused, F.FIND_UNUSED),
        "DPW-10": judged(_static, F.STATIC_GRAPH),
        "DPW-11": judged(_unexpected, F.NEEDS_ALL, by=judge.right_or_refused_by_name),
        "DPW-12": judged(_buckets, F.BUCKETS),
        "DPW-13": judged(_views, F.BUCKET_VIEW),
        "DPW-14": judged(_zeroed),
        "DPW-15": judged(_buffers, F.BROADCASTS_BUFFERS),
        "DPW-16": judged(_hooks, F.HOOKS),
        "DPW-17": judged(_user_hook, F.HOOKS, by=judge.hook_is_used),
        "DPW-18": judged(_wrong_hooks, F.HOOKS, by=judge.refuses_hook),
        "DPW-19": judged(_join, F.JOIN),
        "DPW-20": judged(_early, F.JOIN, by=judge.refuses_early_end),
        "DPW-21": judged(_two_forwards, F.TWO_FORWARDS),
        "DPW-22": judged(_checkpointed, F.CHECKPOINT),
        "DPW-23": judged(_reentrant, F.REENTRANT),
        "DPW-24": judged(_structured, F.STRUCTURED),
        "DPW-25": judged(_channels_last, F.CHANNELS_LAST),
        "DPW-26": judged(_sparse, F.SPARSE),
        **TRAINING_JUDGEMENTS,
        **SHARDING_JUDGEMENTS,
        **DEFERRED_JUDGEMENTS,
    }
)
"""By requirement."""
