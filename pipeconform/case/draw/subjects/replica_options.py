"""Options of data-parallel wrappers, and accumulation over their steps."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from pipeconform.case.case import Case, Step, Zero
from pipeconform.case.draw.changes import accumulates, changed_world, cleared, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.replicas import claim_of, replicas_of, replicated
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import DataParallelClaim


def options_of(claim: DataParallelClaim) -> list[dict[str, Any]]:
    """The options of wrappers to draw from; without options, the case is about accumulation."""
    found: list[dict[str, Any]] = []
    if claim.accumulation:
        found += [{"wrapper": wrapper} for wrapper in claim.wrappers]
    if "ddp" in claim.wrappers:
        ddp = [name for name in ("bucket_views", "hook", "static_graph") if name in claim.options]
        found += [{"wrapper": "ddp", name: True} for name in ddp]
        if len(ddp) > 1:
            found += [{"wrapper": "ddp", ddp[0]: True, name: True} for name in ddp[1:]]
    if claim.accumulation and "fully_shard" in claim.wrappers and "nested" in claim.options:
        found.append({"wrapper": "fully_shard", "nested": True})
    return found


def _program(d: Drawing, draft: Draft) -> Draft:
    train = draft.train
    plain: tuple[Step, ...] = (train, Zero(set_to_none=True), train)
    adding: list[tuple[Step, ...]] = [(train, train), (train, Zero(set_to_none=False), train, train)]
    if not claim_of(d).accumulation:
        return replaced(draft, program=plain)
    has_options = draft.world.replicas is not None and draft.world.replicas.has_options
    return replaced(draft, program=d.pick([plain, *adding] if has_options else adding))


def _without(case: Case) -> Case:
    replicas = replicas_of(case)
    usual = structs.replace(
        replicas, bucket_views=False, static_graph=False, find_unused=False, hook=False, nested=False
    )
    return changed_world(cleared(case), replicas=usual)


REPLICA_OPTIONS = Subject(
    focus=Focus.REPLICA_OPTIONS,
    form="replicas",
    claimed=lambda claim, own: own.data_parallel is not None and bool(options_of(own.data_parallel)),
    found=lambda case: replicas_of(case).has_options or accumulates(case),
    world=replicated(lambda d: d.pick(options_of(claim_of(d)))),
    program=_program,
    without=_without,
    control="without options of the wrapper, and with gradients cleared before every step",
)
