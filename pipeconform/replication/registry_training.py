"""The second part of chapter DPW: which judgement answers which requirement from 27 on, about which cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from pipeconform.case.wrapper_case import Pass, Regroup, Step, WrapperCase
from pipeconform.replication import judge_training as judge
from pipeconform.replication.judgement import judged, under
from pipeconform.replication.sharded_grid import states_between_worlds
from pipeconform.wrapper import WrapOptions, WrapperClaims, WrapperFeature

__all__ = ["TRAINING_JUDGEMENTS"]

F = WrapperFeature


def _scaled(claims: WrapperClaims) -> Iterator[WrapperCase]:
    plain = WrapperCase(module="probed", special="scaled")
    for rank in (0, 1):
        yield structs.replace(plain, steps=(Step(), Step(overflow=rank), Step()))
    yield from under(structs.replace(plain, steps=(Step(overflow=1), Step(overflow=0), Step())), claims)
    yield structs.replace(plain, ranks=3, steps=(Step(), Step(overflow=2), Step()))
    if F.NO_SYNC in claims.features:
        twice = (Pass(sync="no"), Pass())
        yield structs.replace(plain, steps=(Step(passes=twice), Step(passes=twice, overflow=1), Step()))


def _mixed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    plain = WrapperCase(module="mixed")
    for options in (
        WrapOptions(param_dtype="bfloat16", reduce_dtype="float32"),
        WrapOptions(param_dtype="float32", reduce_dtype="bfloat16"),
        WrapOptions(param_dtype="bfloat16", reduce_dtype="bfloat16"),
        WrapOptions(reduce_dtype="bfloat16"),
        WrapOptions(reduce_dtype="float32"),
    ):
        case = structs.replace(plain, options=replace(options, broadcast_buffers=False))
        yield case
        if options.param_dtype is not None:
            yield from list(under(case, claims))[1:]
    if F.BUFFER_DTYPE in claims.features:
        for buffer_dtype in ("float32", "bfloat16"):
            options = WrapOptions(
                param_dtype="bfloat16",
                reduce_dtype="float32",
                buffer_dtype=buffer_dtype,
                broadcast_buffers=False,
            )
            yield structs.replace(plain, options=options)


def _delayed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    last = WrapOptions(delayed=("leave.weight", "leave.bias"), delayed_until="enter.weight")
    many = WrapOptions(delayed=("leave.weight", "leave.bias", "heavy.many"), delayed_until="enter.weight")
    yield WrapperCase(module="single", options=last, steps=(Step(),) * 3)
    yield WrapperCase(options=last, steps=(Step(),) * 3)
    for late in (0, 1):
        yield WrapperCase(module="single", options=many, steps=(Step(late=late),) * 3)
    yield WrapperCase(module="single", options=last, steps=(Step(), Step(zero="zeros"), Step(zero="keep")))
    yield WrapperCase(module="single", options=last, ranks=3)


def _in_backward(claims: WrapperClaims) -> Iterator[WrapperCase]:
    plain = WrapperCase(special="in_backward", steps=(Step(),) * 3)
    yield from under(plain, claims, F.BUCKETS, F.BUCKET_VIEW)
    yield structs.replace(plain, module="shared")
    yield structs.replace(plain, module="frozen", ranks=3)


def _regrouped(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for ranks in ((0, 1), (1, 2), (0, 2)):
        case = WrapperCase(ranks=3, steps=(Step(),) * 4, regroup=Regroup(step=2, ranks=ranks))
        yield from under(case, claims)
    yield WrapperCase(ranks=2, steps=(Step(),) * 3, regroup=Regroup(step=1, ranks=(0, 1)))
    yield WrapperCase(ranks=2, steps=(Step(),) * 3, regroup=Regroup(step=1, ranks=(1,)))
    if F.HOOKS in claims.features:
        hooked = WrapperCase(ranks=3, steps=(Step(),) * 4, regroup=Regroup(step=2, ranks=(0, 2)), hook="user")
        yield from under(hooked, claims, F.BUCKETS, F.BUCKET_VIEW)


def _penalised(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(special="penalty", steps=(Step(),) * 3), claims)
    yield WrapperCase(special="penalty", form="dict", module="shared")


def _modified(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(special="modified", steps=(Step(),) * 3), claims)
    if F.STRUCTURED in claims.features:
        for form in ("tuple", "dict", "nested"):
            yield from under(
                WrapperCase(special="modified", form=form, steps=(Step(),) * 3),
                claims,
                F.FIND_UNUSED,
                F.STATIC_GRAPH,
            )


def _buffer_hooks(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for special in ("buffers_before", "buffers_after"):
        for module in ("assigned", "normed"):
            case = WrapperCase(special=special, module=module, steps=(Step(),) * 3)
            yield from under(case, claims, F.FIND_UNUSED, F.STATIC_GRAPH)


def _states(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for special in ("saved", "loaded"):
        for ranks in (2, 4, 1):
            yield WrapperCase(special=special, ranks=ranks)
        yield WrapperCase(special=special, module="normed", options=WrapOptions(broadcast_buffers=False))
        yield WrapperCase(special=special, module="shared", ranks=3)
    yield from _between_worlds(claims)


def _between_worlds(claims: WrapperClaims) -> Iterator[WrapperCase]:
    """What one number of ranks saves after training, another loads and trains on with."""
    for ranks, others in ((2, 1), (2, 3), (4, 2), (1, 4)):
        yield WrapperCase(ranks=ranks, loaded_by=others)
    own = WrapOptions(broadcast_buffers=False)
    yield WrapperCase(module="normed", ranks=3, loaded_by=2, options=own)
    yield WrapperCase(module="shared", ranks=2, loaded_by=3)
    if F.SHARDS in claims.features:
        yield from states_between_worlds(claims)


def _pickled(claims: WrapperClaims) -> Iterator[WrapperCase]:
    case = WrapperCase(special="pickled", steps=(Step(),) * 3)
    yield from under(case, claims)
    yield structs.replace(case, module="normed")
    yield structs.replace(case, options=WrapOptions(new_group=True))


def _logged(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(special="logged")
    yield WrapperCase(special="logged", ranks=3)
    yield WrapperCase(special="logged_wrongly")


def _devices(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="two_devices")
    yield WrapperCase(options=WrapOptions(device_ids=(0,)))
    yield WrapperCase(options=WrapOptions(device_ids=(0, 1)))
    yield WrapperCase(options=WrapOptions(output_device=1))


TRAINING_JUDGEMENTS = MappingProxyType(
    {
        "DPW-27": judged(_scaled, F.GRADIENT_SCALER, by=judge.scales_alike),
        "DPW-28": judged(_mixed, F.MIXED_PRECISION, by=judge.rounds_as_asked),
        "DPW-29": judged(_delayed, F.DELAYED),
        "DPW-30": judged(_in_backward, F.STEP_IN_BACKWARD),
        "DPW-31": judged(_regrouped, F.OTHER_GROUP, by=judge.goes_on_in_a_group),
        "DPW-32": judged(_penalised, F.DOUBLE_BACKWARD),
        "DPW-33": judged(_modified, F.MODIFIED_OUTPUTS),
        "DPW-34": judged(_buffer_hooks, F.BUFFER_HOOKS),
        "DPW-35": judged(_states, F.FULL_STATE, by=judge.state_travels),
        "DPW-36": judged(_pickled, F.PICKLED, by=judge.pickles),
        "DPW-37": judged(_logged, F.LOGGED, by=judge.tells),
        "DPW-38": judged(_devices, F.DEVICES, by=judge.refuses_devices),
    }
)
"""By requirement."""
