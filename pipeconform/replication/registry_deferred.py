"""The fourth part of chapter DPW: modules on the meta device when they are wrapped; outputs that are references."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from msgspec import structs

from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.replication.judge_deferred import materialises
from pipeconform.replication.judgement import judged, under
from pipeconform.replication.sharded_grid import nested_cases
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F

__all__ = ["DEFERRED_JUDGEMENTS"]


def _deferred(claims: WrapperClaims) -> Iterator[WrapperCase]:
    after = WrapperCase(deferred="after")
    yield from under(structs.replace(after, steps=(Step(),) * 3), claims)
    yield structs.replace(after, ranks=3)
    normed = structs.replace(after, module="normed", options=WrapOptions(broadcast_buffers=False))
    yield normed
    if F.BROADCASTS in claims.features:
        yield structs.replace(after, own_values=True)
    if F.FULL_STATE in claims.features:
        yield structs.replace(after, special="loaded")
        yield structs.replace(normed, special="loaded")
    if F.SHARDS in claims.features:
        for case in nested_cases(claims):
            yield structs.replace(case, deferred="after")
            if F.FULL_STATE in claims.features:
                yield structs.replace(case, deferred="after", special="loaded")
    yield WrapperCase(
        module="ignored", deferred="never"
    )  # the module itself has a parameter, and no way to fill it


def _references(claims: WrapperClaims) -> Iterator[WrapperCase]:
    case = WrapperCase(form="reference", steps=(Step(),) * 3)
    yield from under(case, claims, F.FIND_UNUSED, F.STATIC_GRAPH, F.BUCKETS)


DEFERRED_JUDGEMENTS = MappingProxyType(
    {
        "DPW-43": judged(_deferred, F.DEFERRED, by=materialises),
        "DPW-44": judged(_references, F.REFERENCES),
    }
)
"""By requirement."""
