"""The list of wrappers that are wrong on purpose, and the adapters that `--impl` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..wrapper_adapter import ReferenceWrapper
from . import deferred, wrapper_promises, wrapper_training, wrappers
from .fault import Status
from .registry_sharding import SHARDING_FAULTS

__all__ = ["WRAPPER_FAULTS", "WrapperFault"]


@dataclass(frozen=True, kw_only=True)
class WrapperFault:
    """One wrong wrapper, and how it shows."""

    name: str
    summary: str
    requirement: str
    expected_status: Status
    reference: str
    """``module:Name``, as ``--impl`` takes it."""
    tells: str
    """A regular expression that the finding's message matches."""
    schedule: str = "Wrapper"
    """What stands for the schedule that a wrapper has none of."""


_HERE = "pipeconform.reference_impl.faults.registry_wrappers"
_SHARDING = "pipeconform.reference_impl.faults.registry_sharding"
_LIST: tuple[tuple[str, str, str, Status, str], ...] = (
    ("Summed", "DPW-1", "Gradients are summed over the replicas.", "failed", "gradient of"),
    ("NeverReduced", "DPW-1", "Gradients are never reduced.", "failed", "gradient of"),
    ("OneRankFewer", "DPW-1", "Sums are divided by one rank too few.", "failed", "gradient of"),
    ("OwnValues", "DPW-2", "Every rank keeps its own initial values.", "failed", "not the first rank's"),
    ("OwnBuffers", "DPW-2", "Buffers begin as they are on each rank.", "failed", "norm.running_mean"),
    ("ShapesUnread", "DPW-3", "Shapes are not compared, and the broadcast fails.", "crashed", "died"),
    ("FirstRankUntold", "DPW-3", "The first rank goes on alone and waits.", "hung", "progress"),
    ("MismatchUnnamed", "DPW-3", "The error does not name the parameter.", "failed", "in its message"),
    ("SinglePrecision", "DPW-4", "Gradients go through single precision.", "failed", "gradient of"),
    ("SharedTwice", "DPW-5", "A parameter with two names counts twice.", "failed", "enter.weight"),
    ("FrozenTrained", "DPW-5", "Frozen parameters are trained.", "failed", "kept.weight"),
    ("NothingIgnored", "DPW-6", "What was to be ignored is kept in step.", "failed", "own changes when"),
    ("IgnoredBuffersBroadcast", "DPW-6", "Ignored buffers are broadcast.", "failed", "own_seen"),
    ("NoSyncLeaks", "DPW-7", "After no_sync nothing is reduced any more.", "failed", "gradient of"),
    ("NoSyncForgotten", "DPW-7", "Passes inside no_sync are reduced.", "failed", r"pass 0 \(no\)"),
    ("InnerContextEnds", "DPW-7", "The inner of two contexts ends the outer.", "failed", r"\(nested\)"),
    ("AccumulatedDropped", "DPW-7", "What added up is dropped.", "failed", "gradient of"),
    ("BackwardDecides", "DPW-8", "Where the backward runs decides.", "failed", r"\((back|for)ward_inside\)"),
    ("UnusedStale", "DPW-9", "A rank without a gradient does not get the mean.", "failed", "towers"),
    ("NothingReachedLeft", "DPW-9", "Who reaches no parameter reduces none.", "failed", "gradient of"),
    ("UnusedByUsers", "DPW-9", "Means are over the ranks that used it.", "failed", "towers"),
    ("StaticByEachRank", "DPW-10", "Every rank learns its own graph.", "hung", "progress"),
    ("StaticFirstForgotten", "DPW-10", "The first pass is not reduced.", "failed", "step 0"),
    ("UnusedUnnamed", "DPW-11", "The error does not name the parameter.", "failed", "in its message"),
    ("UnusedAsOnes", "DPW-11", "An unused parameter gets a gradient of ones.", "failed", "towers.b"),
    ("LastBucketLocal", "DPW-12", "The last bucket is never reduced.", "failed", "gradient of"),
    ("RebuiltOneShort", "DPW-12", "The rebuilt buckets lack the last.", "failed", "step 1"),
    ("ViewsTwice", "DPW-13", "A gradient in its bucket is added once more.", "failed", "step [12]"),
    ("AccumulatedDropped", "DPW-14", "What was kept is dropped.", "failed", "step 2"),
    ("BuffersLeftAlone", "DPW-15", "Buffers are not broadcast.", "failed", "running_mean|seen"),
    (
        "BuffersAlways",
        "DPW-15",
        "Buffers are broadcast although switched off.",
        "failed",
        "running_mean|seen",
    ),
    ("BuffersOfThen", "DPW-15", "Buffers assigned anew are missed.", "failed", "seen"),
    ("CompressedSum", "DPW-16", "A built-in hook's result is not divided.", "failed", "gradient of"),
    ("HookResultIgnored", "DPW-17", "The hook's result is ignored.", "failed", "gradient of"),
    ("HookForFirstPass", "DPW-17", "The hook is lost with the first buckets.", "failed", "given 0 elements"),
    ("HookTwice", "DPW-17", "The hook is called twice for a bucket.", "failed", "elements of gradients"),
    ("AnythingIsAHook", "DPW-18", "Everything is accepted as a hook.", "failed", "raised nothing"),
    ("JoinByAll", "DPW-19", "Division is always by all ranks.", "failed", "gradient of"),
    ("JoinByPresent", "DPW-19", "Division is always by the ranks present.", "failed", "gradient of"),
    ("JoinEndsApart", "DPW-19", "Ranks end with their own parameters.", "failed", "after join"),
    ("StandInAddsOwn", "DPW-19", "Ranks without batches repeat their last.", "failed", "gradient of"),
    ("EarlyEndLetPass", "DPW-20", "Uneven inputs are let pass.", "failed", "raised nothing"),
    ("ForwardsAveraged", "DPW-21", "Two forwards count as half each.", "failed", "gradient of"),
    ("RecomputedLocal", "DPW-22", "Recomputed parts are not averaged.", "failed", "gradient of enter"),
    ("RecomputedLocal", "DPW-23", "Recomputed parts are not averaged.", "failed", "gradient of enter"),
    ("MappingsBecomeTuples", "DPW-24", "Dicts come back as tuples.", "failed", "the output is"),
    ("DataclassesUnread", "DPW-24", "Tensors in dataclasses are not found.", "failed", "gradient of"),
    ("MemoryOrder", "DPW-25", "Gradients are copied in memory order.", "failed", "conv.weight"),
    ("SparseSummed", "DPW-26", "Sparse gradients are not divided.", "failed", "table.weight"),
    ("SparseLocal", "DPW-26", "Sparse gradients are not reduced.", "failed", "table.weight"),
    (
        "InfinityAtHome",
        "DPW-27",
        "Ranks whose own gradients are finite take the step.",
        "failed",
        "after step [12]",
    ),
    ("InfinityCutOff", "DPW-27", "Infinite gradients are made zero.", "failed", "after step 1"),
    ("ReducedAsComputed", "DPW-28", "Gradients are reduced as they are computed.", "failed", "probe"),
    ("ReducedInFull", "DPW-28", "Gradients are reduced in full precision.", "failed", "probe"),
    ("ComputedInFull", "DPW-28", "The forward computes in full precision.", "failed", "the output is"),
    ("BuffersInFull", "DPW-28", "Buffers are not cast.", "failed", "the output is"),
    ("DelayedForEver", "DPW-29", "What is delayed is never reduced.", "failed", "leave.weight"),
    ("DelayedSummed", "DPW-29", "What is delayed is not divided.", "failed", "leave.weight"),
    ("StepBeforeReduction", "DPW-30", "Steps are taken with own gradients.", "failed", "after step 0"),
    ("StepTwice", "DPW-30", "Every step is taken twice.", "failed", "after step 0"),
    ("OldDivisor", "DPW-31", "Means are over the ranks of before.", "failed", "step 2"),
    ("HookLostWithGroup", "DPW-31", "The hook is lost with the group.", "failed", "given 0 elements"),
    ("OldGroup", "DPW-31", "The old group is waited for.", "hung", "progress"),
    ("AnyBackwardEnds", "DPW-32", "Gradients of inputs end the pass.", "error", "no gradient"),
    ("SecondOrderLost", "DPW-32", "Gradients of gradients are lost.", "failed", "gradient of"),
    ("OutputsAreViews", "DPW-33", "Outputs cannot be modified.", "error", "is a view"),
    ("OutputsShared", "DPW-33", "Gradients follow what becomes of the outputs.", "failed", "gradient of"),
    ("BufferHookMissed", "DPW-34", "The hook is not called.", "failed", "seen|running"),
    ("BufferHookAlwaysBefore", "DPW-34", "The hook is always called before.", "failed", "seen|running"),
    ("SavedWithPrefix", "DPW-35", "Names have a prefix of the wrapper's.", "failed", "module.enter"),
    ("SavedWithoutBuffers", "DPW-35", "Buffers are not saved.", "failed", "running_mean"),
    ("LoadedOnOneRank", "DPW-35", "Only the first rank loads.", "failed", "after loading"),
    (
        "OtherWorldsSkipped",
        "DPW-35",
        "What other numbers of ranks saved is skipped.",
        "failed",
        "ranks saved",
    ),
    ("PickledAnywhere", "DPW-36", "A pickle leaves out the process group.", "failed", "raised nothing"),
    ("PickledAlone", "DPW-36", "After a pickle nothing is reduced.", "failed", "step 1"),
    ("LogOfOthers", "DPW-37", "Every rank tells about the first.", "failed", "rank is told"),
    ("AnyRate", "DPW-37", "Any rate is accepted.", "failed", "raised nothing"),
    ("AnyDevice", "DPW-38", "Device arguments are not looked at.", "failed", "raised nothing"),
    ("MaterialisedApart", "DPW-43", "Every rank keeps its own values.", "failed", "once it is materialised"),
    ("MemoryOnly", "DPW-43", "Parameters get memory, and no values.", "failed", "once it is materialised"),
    ("BuffersLeftOut", "DPW-43", "Buffers get memory, and no values.", "failed", "norm.running_var once"),
    ("HooksOfBefore", "DPW-43", "Gradients of the old parameters are watched.", "failed", "gradient of"),
    (
        "MaterialisedByItself",
        "DPW-43",
        "A forward gives memory to what has none.",
        "failed",
        "raised nothing",
    ),
    ("ReferencesUnread", "DPW-44", "What is referred to is not found.", "failed", "gradient of"),
    ("ReferencesFollowed", "DPW-44", "Outputs come back without their reference.", "failed", "the output is"),
)


def _adapter(name: str) -> ReferenceWrapper:
    adapter = ReferenceWrapper()
    modules = (wrappers, wrapper_promises, wrapper_training, deferred)
    adapter.wrapper = next(getattr(module, name) for module in modules if hasattr(module, name))
    return adapter


def __getattr__(name: str) -> Any:
    """The adapter of a fault, for ``--impl``."""
    if name in {row[0] for row in _LIST}:
        return _adapter(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _fault(where: str, requirement: str, summary: str, status: Status, tells: str) -> WrapperFault:
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in where)
    name = f"{words.lstrip('-')}-{requirement.lower()}"
    return WrapperFault(
        name=name,
        summary=summary,
        requirement=requirement,
        expected_status=status,
        reference=f"{_HERE if any(row[0] == where for row in _LIST) else _SHARDING}:{where}",
        tells=tells,
    )


WRAPPER_FAULTS: Mapping[str, WrapperFault] = MappingProxyType(
    {fault.name: fault for fault in (_fault(*row) for row in (*_LIST, *SHARDING_FAULTS))}
)
"""By name."""
