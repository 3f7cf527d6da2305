"""The adapters of wrappers that are wrong on purpose, for ``--impl``: ``…faulty_wrappers:Summed``."""

from __future__ import annotations

from typing import Any

from torch import nn

from pipeconform.wrapper import WrapOptions

from ..data_parallel import DataParallel
from ..sharded import Sharded
from ..sharded_adapter import ShardedReplica, shard
from ..wrapper_adapter import ReferenceWrapper
from . import deferred, hybrids, sharding, wrapper_promises, wrapper_training, wrappers

__all__: list[str] = []

_MODULES = (wrappers, wrapper_promises, wrapper_training, deferred, sharding, hybrids)


class _Sharding(ReferenceWrapper):
    """The reference with another sharding."""

    def __init__(self, kind: type[Sharded]) -> None:
        self._kind = kind

    def wrap(self, module: nn.Module, options: WrapOptions) -> Any:
        """Shard wrongly; wrap without `sharding` as the reference does."""
        if options.sharding is None:
            return super().wrap(module, options)
        found: ShardedReplica = shard(module, options, wrapper=self._kind)
        return found


def __getattr__(name: str) -> Any:
    """The adapter of a fault, by the name of its class."""
    found = next((vars(module)[name] for module in _MODULES if name in vars(module)), None)
    if not isinstance(found, type) or name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if issubclass(found, Sharded):
        return _Sharding(found)
    assert issubclass(found, DataParallel)
    adapter = ReferenceWrapper()
    adapter.wrapper = found
    return adapter
