"""Finding an implementation: a built-in name, ``package.module:Object`` or ``path/to/file.py:Object``.

Imported in rank processes only; the controller gets the description as data.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from pipeconform.adapter import Description
from pipeconform.errors import BadAdapterError, IsWrapperError, Unsupported
from pipeconform.execute.signatures import require_call

__all__ = ["BUILT_IN", "METHODS", "WRAPPERS", "WRAPPER_METHODS", "load", "module_of", "resolve"]

WRAPPERS: Mapping[str, str] = {
    "torch-ddp": "pipeconform.adapters.torch_wrappers:TorchDdp",
    "torch-fully-shard": "pipeconform.adapters.torch_wrappers:TorchFullyShard",
    "torch-fsdp": "pipeconform.adapters.torch_wrappers:TorchFsdp",
    "reference-wrapper": "pipeconform.reference_impl.wrapper_adapter:ReferenceWrapper",
}
"""Short names of the data-parallel wrappers that come with pipeconform."""
BUILT_IN = {
    "torch": "pipeconform.adapters.torch_pipelining:TorchPipelining",
    "deepspeed": "pipeconform.adapters.deepspeed:DeepSpeed",
    "megatron": "pipeconform.adapters.megatron:Megatron",
    "torchgpipe": "pipeconform.adapters.torchgpipe:TorchGPipe",
    "reference": "pipeconform.reference_impl.adapter:ReferenceAdapter",
    "reference-single": "pipeconform.reference_impl.single_process:SingleProcessReference",
    **WRAPPERS,
}
"""Short names of the implementations that come with pipeconform."""

_DESCRIPTIONS = msgspec.msgpack.Decoder(Description)  # made once, in the fork server
_CALLS = {
    "describe": (),
    "setup_process": (),
    "build": ("plan",),
    "wrap": ("module", "options"),
}
"""What each method is called with."""
METHODS = ("describe", "setup_process", "build")
WRAPPER_METHODS = ("describe", "wrap")
_FORMS = "a built-in name ({}), package.module:Object or path/to/file.py:Object".format(", ".join(BUILT_IN))


def resolve(reference: str) -> str:
    """The full ``module:Object`` or ``/absolute/file.py:Object`` form of what a user wrote.

    Raises:
        BadAdapterError: it has none of the three forms, or the file does not exist.
    """
    full = BUILT_IN.get(reference, reference)
    where, colon, name = full.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise BadAdapterError(f"cannot read --impl {reference!r}: expected {_FORMS}")
    if where.endswith(".py"):
        path = Path(where).expanduser().resolve()
        if not path.is_file():
            raise BadAdapterError(f"--impl {reference!r}: there is no file {where}")
        return f"{path}:{name}"
    return full


def load(reference: str, *, methods: Sequence[str] = METHODS) -> Any:
    """Import the implementation and return its adapter object, checked against the contract's `methods`.

    Raises:
        BadAdapterError: it cannot be imported, is not there, lacks a method or describes itself wrongly.
        IsWrapperError: it has the methods of a wrapper's adapter, and others were asked for.
        ContractError: a method takes other arguments than it is called with.
    """
    where, _, name = resolve(reference).rpartition(":")
    module = _module(where, reference)
    if not hasattr(module, name):
        raise BadAdapterError(
            f"--impl {reference!r}: imported {where}, but it has no {name!r}; "
            f"it defines {', '.join(_defined_in(module)) or 'nothing'}"
        )
    found = getattr(module, name)
    try:
        adapter = found() if isinstance(found, type) else found
    except Exception as error:
        raise BadAdapterError(
            f"--impl {reference!r}: {name}() raised {_told(error, where)}; "
            f"an adapter class is called without arguments"
        ) from error
    missing = _missing(adapter, methods)
    if "build" in missing and not _missing(adapter, WRAPPER_METHODS):
        raise IsWrapperError(
            f"--impl {reference!r}: {where}:{name} is of a data-parallel wrapper: it has wrap(), not build()"
        )
    if missing:
        raise BadAdapterError(
            f"--impl {reference!r}: {where}:{name} lacks {', '.join(f'{m}()' for m in missing)}; a valid adapter has "
            f"{', '.join(f'{m}()' for m in methods)} (see pipeconform.adapter.Adapter, or run 'pipeconform init FILE')"
        )
    for method in methods:
        require_call(getattr(adapter, method), f"{name}.{method}", _CALLS[method])
    return adapter


def module_of(where: str) -> str:
    """The name under which the module of a full reference, without its object, is imported."""
    if not where.endswith(".py"):
        return where
    return f"_pipeconform_impl_{hashlib.sha256(where.encode()).hexdigest()[:12]}"


def _missing(adapter: object, methods: Sequence[str]) -> list[str]:
    return [method for method in methods if not callable(getattr(adapter, method, None))]


def describe(reference: str) -> Description:
    """Load the implementation and let it describe itself.

    Raises:
        BadAdapterError: as for `load`, or ``describe()`` raised or returned something else; what it raised
            as `Unsupported` (an engine that is not installed, or too old) is told as it is.
    """
    adapter = load(reference)
    try:
        description = adapter.describe()
    except Unsupported as reason:
        raise BadAdapterError(f"--impl {reference!r}: {reason}") from reason
    except Exception as error:
        where = resolve(reference).rpartition(":")[0]
        raise BadAdapterError(f"--impl {reference!r}: describe() raised {_told(error, where)}") from error
    if not isinstance(description, Description):
        raise BadAdapterError(
            f"--impl {reference!r}: describe() returned {type(description).__name__} {description!r:.80}; "
            f"expected pipeconform.adapter.Description"
        )
    _check_types(description, reference)
    if not description.capabilities.schedules:
        raise BadAdapterError(
            f"--impl {reference!r}: describe() claims no schedule, so nothing can be judged"
        )
    return description


def _check_types(description: Description, reference: str) -> None:
    """Dataclasses believe whatever they are given; the way to the controller, MessagePack, does not.

    Raises:
        BadAdapterError: a field holds something of another type; the message gives its path.
    """
    try:
        _DESCRIPTIONS.decode(msgspec.msgpack.encode(description))
    except (msgspec.ValidationError, TypeError) as error:
        text = str(error).replace("`$.", "`Description.")
        raise BadAdapterError(f"--impl {reference!r}: describe() returned a wrong value: {text}") from error


def _defined_in(module: ModuleType) -> list[str]:
    """The public classes and functions that a module does not merely import."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def _told(error: BaseException, where: str) -> str:
    """An exception in words, with the last line of the adapter's own file that it passed through."""
    at, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == where:
            at = f" ({Path(where).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{at}"


def _module(where: str, reference: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        name = module_of(where)
        if name in sys.modules:
            return sys.modules[name]
        folder = str(Path(where).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # at its end: a neighbour called like a library does not hide it
        spec = importlib.util.spec_from_file_location(name, where)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        else:
            return module
    except (Exception, SystemExit) as error:
        raise BadAdapterError(
            f"--impl {reference!r}: importing {where} raised {_told(error, where)}"
        ) from error
