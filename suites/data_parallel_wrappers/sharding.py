"""Modules that are sharded over the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right, refused
from pipeconform.wrappers.judge_sharded import is_of, trains_like_ddp
from pipeconform.wrappers.judgement import requirement
from pipeconform.wrappers.sharded_grid import (
    delayed_cases,
    every_case,
    offloaded_cases,
    pairwise_cases,
    refused_cases,
)

from ..promises import ASYNCHRONOUS, documented


@requirement(
    "DPW-39",
    title="Sharded training",
    level=MUST,
    cases=pairwise_cases,
    every=every_case,
    needs=(F.SHARDS,),
    promise=(
        documented("torch.distributed.fsdp documentation", "fsdp.html"),
        documented("torch.distributed.fsdp.fully_shard documentation", "distributed.fsdp.fully_shard.html"),
    ),
)
def sharded_training(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A module that is sharded over the ranks trains as it does on one: every step of SGD and of Adam is that
    of the whole module with the mean gradient, and after all of them its parameters are those of a
    DistributedDataParallel trained alongside. This holds under every two claimed options together: strategy,
    prefetching, precision, original or flat parameters, nested and uneven units, ignored parts, frozen
    parameters, ranks that have no part of a parameter, experts on some ranks, accumulation, compiled parts.

    Each option is right alone; padding, stale copies and wrong groups show where two of them meet.
    """
    yield from trains_like_ddp(evidence)


@requirement(
    "DPW-40",
    title="Sharded training with offloading",
    level=MUST,
    cases=offloaded_cases,
    needs=(F.SHARDS, F.OFFLOADS),
    promise=documented("torch.distributed.fsdp documentation, CPUOffloadPolicy and CPUOffload", "fsdp.html"),
)
def sharded_training_with_offloading(evidence: WrapperEvidence) -> Iterator[Finding]:
    """DPW-39 also holds where shards and their gradients are kept in the host's memory.

    If the copy on the device is not made again after the optimizer's step, it trains on old values.
    """
    yield from trains_like_ddp(evidence)


@requirement(
    "DPW-41",
    title="Sharded training with a late rank",
    level=MUST,
    cases=delayed_cases,
    needs=(F.SHARDS,),
    promise=ASYNCHRONOUS,
)
def sharded_training_with_a_late_rank(evidence: WrapperEvidence) -> Iterator[Finding]:
    """When one rank is late with its reductions, with gathering, after the loss or before parameters are
    freed, nothing but time changes.

    Communication that is not waited for has usually ended in time.
    """
    yield from is_right(evidence)


@requirement(
    "DPW-42",
    title="Combinations that are refused",
    level=MUST,
    cases=refused_cases,
    needs=(F.SHARDS, F.REFUSES),
    promise=documented(
        "torch.distributed.fsdp.FullyShardedDataParallel documentation, use_orig_params",
        "fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel",
    ),
)
def combinations_that_are_refused(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A combination of options that the wrapper documents as refused raises an error on every rank when the
    module is wrapped, in the documented words.

    Users rely on an option that is quietly ignored.
    """
    says = [
        one.says
        for one in evidence.claims.sharding.refusals
        if one.says and is_of(evidence, dict(one.combination))
    ]
    yield from refused(evidence, where="wrap", words=tuple(says))
