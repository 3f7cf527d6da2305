"""The list of sharded wrappers that are wrong on purpose, and the adapters that `--impl` takes."""

from __future__ import annotations

from typing import Any

from torch import nn

from pipeconform.wrapper import WrapOptions, WrapperDescription

from ..sharded_adapter import ShardedReplica, shard
from ..wrapper_adapter import ReferenceWrapper
from . import sharding
from .fault import Status

__all__ = ["SHARDING_FAULTS"]

SHARDING_FAULTS: tuple[tuple[str, str, str, Status, str], ...] = (
    ("CutsOfTheSaver", "DPW-35", "Shards are cut as the saver had them.", "failed", "ranks saved"),
    ("StaleWholes", "DPW-39", "Whole parameters outlive the step.", "failed", "step 1"),
    ("PrefetchesOldValues", "DPW-39", "Prefetched parameters are from before the step.", "failed", "step 1"),
    ("PaddingLeaks", "DPW-39", "Padding gets in among the gradients.", "failed", "gradient of"),
    ("RestForgotten", "DPW-39", "What is left over by division gets no gradient.", "failed", "gradient of"),
    ("SmallReducedAlone", "DPW-39", "Parameters that some lack are not reduced.", "failed", "gain.weight"),
    ("InnerDividedTwice", "DPW-39", "Nested units are divided twice.", "failed", "middle.first"),
    ("UnshardedSummed", "DPW-39", "Without sharding gradients are summed.", "failed", "gradient of"),
    ("ReducedInOneGroup", "DPW-39", "Copies of a hybrid are not averaged.", "failed", "gradient of"),
    ("ExpertsOfAllAveraged", "DPW-39", "Experts are averaged over all ranks.", "failed", "expert"),
    ("IgnoredAveraged", "DPW-39", "Ignored parameters are averaged.", "failed", "apart"),
    ("IgnoredSharded", "DPW-39", "Ignored parameters are sharded.", "failed", "apart"),
    ("AccumulatedForgotten", "DPW-39", "What was accumulated is dropped.", "failed", "gradient of"),
    ("AccumulatedAgain", "DPW-39", "What was accumulated comes again.", "failed", "step 1"),
    ("ComputesInSingle", "DPW-39", "Computes in single precision.", "failed", "output 0"),
    ("CompiledKeepsFirst", "DPW-39", "Compiled parts keep their first parameters.", "failed", "step 1"),
    ("OffloadedOnce", "DPW-40", "Offloaded shards are copied once.", "failed", "step 1"),
    ("OffloadedOverwritten", "DPW-40", "Offloaded gradients are overwritten.", "failed", "gradient of"),
    ("GatheredUnwaited", "DPW-41", "Parameters are used before they arrived.", "failed", "output 0"),
    ("ReducedUnwaited", "DPW-41", "A late reduction is left out.", "failed", "gradient of"),
    (
        "FirstPartForAll",
        "DPW-43",
        "Every rank materialises the first part.",
        "failed",
        "once it is|after loading",
    ),
    ("HybridAnyhow", "DPW-42", "What is refused by contract is let pass.", "failed", "raised nothing"),
    ("HybridUnexplained", "DPW-42", "The refusal does not say why.", "failed", "in its message"),
    ("HybridRefusedByOne", "DPW-42", "One rank refuses, the others go on.", "hung", "progress"),
)


class _Faulty(ReferenceWrapper):
    """The reference, but for one way to shard."""

    def __init__(self, name: str) -> None:
        self._class = getattr(sharding, name)

    def describe(self) -> WrapperDescription:
        """Claims."""
        return super().describe()

    def wrap(self, module: nn.Module, options: WrapOptions) -> Any:
        """Shard wrongly; what is not sharded is right."""
        if options.sharding is None:
            return super().wrap(module, options)
        found: ShardedReplica = shard(module, options, wrapper=self._class)
        return found


def __getattr__(name: str) -> Any:
    """The adapter of a fault, for ``--impl``."""
    if name in {row[0] for row in SHARDING_FAULTS}:
        return _Faulty(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
