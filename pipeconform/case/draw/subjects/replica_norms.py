"""Batch norms that are synchronised over replicas."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.case import Case
from pipeconform.case.draw.changes import appended, changed_blocks, has, replaced, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.replicas import in_ddp, replicated, with_one_pipeline
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, ScheduleClaim


def _normed(d: Drawing, draft: Draft) -> Draft:
    stage = d.pick(range(d.num_stages))
    return replaced(draft, model=appended(draft.model, stage, blocks.SyncedNorm()))


def _with_one_replica(case: Case) -> Case:
    return with_one_pipeline(changed_blocks(case, {blocks.SyncedNorm: (blocks.BatchNorm(),)}))


def _is_claimed(claim: ScheduleClaim, own: Capabilities) -> bool:
    replicated = own.data_parallel
    return replicated is not None and replicated.synchronised_norms and "ddp" in replicated.wrappers


REPLICA_NORMS = Subject(
    focus=Focus.REPLICA_NORMS,
    squares=True,
    form="replicas",
    needs=frozenset({Feature.BUFFERS}),
    claimed=_is_claimed,
    found=has(blocks.SyncedNorm),
    rarity=3,
    least_replicas=2,
    rows=(2, 3, 4),  # the gradient of a norm over too few samples is zero
    world=replicated(in_ddp),
    program=_normed,
    without=without_blocks(blocks.SyncedNorm),
    control="without the synchronised batch norm",
    further=(("with one replica and an ordinary batch norm", _with_one_replica),),
)
