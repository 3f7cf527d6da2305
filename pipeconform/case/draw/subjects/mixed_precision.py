"""Sharded replicas that compute in bfloat16 and reduce in float32, as most large models are trained."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from pipeconform.case.case import Case, Zero
from pipeconform.case.draw.changes import changed_world, replaced, with_linear_maps
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.replicas import claim_of, replicas_of, replicated
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, ScheduleClaim


def _claimed(claim: ScheduleClaim, own: Capabilities) -> bool:
    replicated = own.data_parallel
    if replicated is None or not {"float32", "bfloat16"} <= set(own.boundary.dtypes):
        return False
    return "fully_shard" in replicated.wrappers and "mixed_precision" in replicated.options


def _sharded(d: Drawing) -> dict[str, Any]:
    # sharding block by block under a split backward is a question of its own, of `replicas.SHARDED`
    nested = "nested" in claim_of(d).options and not d.claim.split_backward and d.pick([False, True])
    return {"wrapper": "fully_shard", "nested": nested, "mixed_precision": True}


def _contents(d: Drawing, draft: Draft) -> Draft:
    return replaced(
        draft, model=with_linear_maps(draft.model) if d.pick((True, True, False)) else draft.model
    )


def _program(d: Drawing, draft: Draft) -> Draft:
    return replaced(draft, program=(draft.train, Zero(set_to_none=True), draft.train))


def _without(case: Case) -> Case:
    return changed_world(case, replicas=structs.replace(replicas_of(case), mixed_precision=False))


MIXED_REPLICAS = Subject(
    focus=Focus.MIXED_REPLICAS,
    form="replicas",
    claimed=_claimed,
    found=lambda case: replicas_of(case).mixed_precision,
    rarity=2,
    several_microbatches=True,  # gradients of all of them are added up before they are reduced
    exact_mean=True,
    rows=(1, 1, 2),
    widths=(2, 3, 4),
    dtype=lambda d: "float32",
    contents=_contents,
    world=replicated(_sharded),
    program=_program,
    without=_without,
    control="without mixed precision",
)
