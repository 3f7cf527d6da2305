"""Names of the wrappers that come with pipeconform."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pipeconform.run import implementation

__all__ = ["WRAPPERS", "resolve"]

WRAPPERS: Mapping[str, str] = MappingProxyType(
    {
        "torch-ddp": "pipeconform.adapters.torch_wrappers:TorchDdp",
        "torch-fully-shard": "pipeconform.adapters.torch_wrappers:TorchFullyShard",
        "torch-fsdp": "pipeconform.adapters.torch_wrappers:TorchFsdp",
        "reference-wrapper": "pipeconform.reference_impl.wrapper_adapter:ReferenceWrapper",
    }
)


def resolve(name: str) -> str:
    """The full form of what a user wrote: one of these names, ``package.module:Object`` or ``file.py:Object``.

    Raises:
        BadAdapterError: it has none of the forms, or the file does not exist.
    """
    return implementation.resolve(WRAPPERS.get(name, name))
