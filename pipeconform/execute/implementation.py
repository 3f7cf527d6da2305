"""Finding an implementation: a built-in name, ``package.module:Object`` or ``path/to/file.py:Object``.

Imported in rank processes only; the controller gets the description as data.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from pipeconform.adapter import Description
from pipeconform.errors import BadAdapterError, Unsupported
from pipeconform.execute.meant import meant_by, meant_in_value
from pipeconform.execute.signatures import require_call
from pipeconform.suggestions import hint, nearest
from pipeconform.wrapper import WrapperDescription

__all__ = ["BUILT_IN", "describe", "load", "module_of", "resolve"]

BUILT_IN = {
    "torch": "pipeconform.adapters.torch_pipelining:TorchPipelining",
    "deepspeed": "pipeconform.adapters.deepspeed:DeepSpeed",
    "deepspeed-zero1": "pipeconform.adapters.deepspeed:DeepSpeedZero1",
    "megatron": "pipeconform.adapters.megatron:Megatron",
    "megatron-lm": "pipeconform.adapters.megatron:MegatronLM",
    "megatron-batched": "pipeconform.adapters.megatron:MegatronBatched",
    "colossalai": "pipeconform.adapters.colossalai:ColossalAI",
    "automodel": "pipeconform.adapters.automodel:AutoModel",
    "nanotron": "pipeconform.adapters.nanotron:Nanotron",
    "olmo-core": "pipeconform.adapters.olmo_core:OlmoCore",
    "torchtitan": "pipeconform.adapters.torchtitan:Torchtitan",
    "torchtitan-graph-pp": "pipeconform.adapters.torchtitan_graph:TorchtitanGraph",
    "internevo": "pipeconform.adapters.internevo:InternEvo",
    "galvatron": "pipeconform.adapters.galvatron:Galvatron",
    "picotron": "pipeconform.adapters.picotron:Picotron",
    "picotron-undivided": "pipeconform.adapters.picotron:PicotronUndivided",
    "zero-bubble": "pipeconform.adapters.zero_bubble:ZeroBubble",
    "apex": "pipeconform.adapters.apex:Apex",
    "accelerate": "pipeconform.adapters.accelerate:Accelerate",
    "accelerate-unpadded": "pipeconform.adapters.accelerate:AccelerateUnpadded",
    "accelerate-gathered": "pipeconform.adapters.accelerate:AccelerateGathered",
    "dualpipe": "pipeconform.adapters.dualpipe:DualPipe",
    "dualpipe-default": "pipeconform.adapters.dualpipe:DualPipeDefault",
    "torchgpipe": "pipeconform.adapters.torchgpipe:TorchGPipe",
    "reference": "pipeconform.reference_impl.adapter:ReferenceAdapter",
    "reference-single": "pipeconform.reference_impl.single_process:SingleProcessReference",
    "torch-ddp": "pipeconform.adapters.torch_wrappers:TorchDdp",
    "torch-fully-shard": "pipeconform.adapters.torch_wrappers:TorchFullyShard",
    "torch-fsdp": "pipeconform.adapters.torch_wrappers:TorchFsdp",
    "reference-wrapper": "pipeconform.reference_impl.wrapper_adapter:ReferenceWrapper",
}
"""Short names of the implementations that come with pipeconform."""

_CALLS = {
    "describe": (),
    "setup_process": (),
    "build": ("plan",),
    "wrap": ("module", "options"),
}
"""The arguments of each method."""


@dataclass(frozen=True, kw_only=True)
class _Contract:
    """The methods of one kind of adapter, and what its ``describe()`` returns."""

    protocol: str
    methods: tuple[str, ...]
    description: type[Any]
    decoder: msgspec.msgpack.Decoder[Any]
    """A decoder, made once, in the fork server."""


_PIPELINE = _Contract(
    protocol="pipeconform.adapter.Adapter",
    methods=("describe", "setup_process", "build"),
    description=Description,
    decoder=msgspec.msgpack.Decoder(Description),
)
_WRAPPER = _Contract(
    protocol="pipeconform.wrapper.WrapperAdapter",
    methods=("describe", "wrap"),
    description=WrapperDescription,
    decoder=msgspec.msgpack.Decoder(WrapperDescription),
)
_FORMS = "a built-in name ({}), package.module:Object or path/to/file.py:Object".format(", ".join(BUILT_IN))


def resolve(reference: str) -> str:
    """The full ``module:Object`` or ``/absolute/file.py:Object`` form of what a user wrote.

    Raises:
        BadAdapterError: it has none of the three forms, or the file does not exist.
    """
    full = BUILT_IN.get(reference, reference)
    where, colon, name = full.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise BadAdapterError(f"cannot read --impl {reference!r}{_hint(reference)}: expected {_FORMS}")
    if where.endswith(".py"):
        path = Path(where).expanduser().resolve()
        if not os.path.isfile(path):  # Path.is_file raises for what is too long to be a file's name
            others = [one.name for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise BadAdapterError(
                f"--impl {reference!r}: there is no file {where}{hint(nearest(path.name, others))}"
            )
        return f"{path}:{name}"
    return full


def _hint(reference: str) -> str:
    """What a reference without an object may mean: a built-in name, or an adapter in the file."""
    path = Path(reference).expanduser()
    if path.name and not path.suffix and path.with_name(f"{path.name}.py").is_file():
        return _hint(f"{reference}.py")
    if path.suffix == ".py" and path.is_file():
        objects = " or ".join(f"{reference}:{name}" for name in _adapters_in(path))
        return f" (name the adapter, too: {objects or f'{reference}:NAME'})"
    near = nearest(reference, BUILT_IN)
    return f" (nearest: {', '.join(near)})" if near else ""


def _adapters_in(path: Path) -> list[str]:
    """The classes of a file that have the method every adapter has; the file is not imported."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    classes = [one for one in body if isinstance(one, ast.ClassDef)]
    return [one.name for one in classes if any(getattr(part, "name", "") == "describe" for part in one.body)]


def load(reference: str) -> Any:
    """Import the implementation and return its adapter object, checked against the contract of its kind.

    An adapter with ``wrap()`` and without ``build()`` is a data-parallel wrapper's, any other a pipeline's.

    Raises:
        BadAdapterError: it cannot be imported, does not exist or lacks a method.
        ContractError: a method takes other arguments than it is called with.
    """
    where, _, name = resolve(reference).rpartition(":")
    module = _module(where, reference)
    if not hasattr(module, name):
        near = nearest(name, _defined_in(module))
        said = (
            f"nearest: {', '.join(near)}"
            if near
            else f"it defines {', '.join(_defined_in(module)) or 'nothing'}"
        )
        raise BadAdapterError(f"--impl {reference!r}: imported {where}, but it has no {name!r}; {said}")
    found = getattr(module, name)
    try:
        adapter = found() if isinstance(found, type) else found
    except Exception as error:
        raise BadAdapterError(
            f"--impl {reference!r}: {name}() raised {_told(error, where)}; "
            f"an adapter class is called without arguments"
        ) from error
    contract = _contract_of(adapter)
    missing = [method for method in contract.methods if not _has(adapter, method)]
    if missing:
        raise BadAdapterError(
            f"--impl {reference!r}: {where}:{name} lacks {', '.join(f'{m}()' for m in missing)}; a valid adapter has "
            f"{', '.join(f'{m}()' for m in contract.methods)} (see {contract.protocol}, or run 'pipeconform init FILE')"
        )
    for method in contract.methods:
        require_call(getattr(adapter, method), f"{name}.{method}", _CALLS[method])
    return adapter


def module_of(where: str) -> str:
    """The name under which the module of a full reference is imported."""
    if not where.endswith(".py"):
        return where
    return f"_pipeconform_impl_{hashlib.sha256(where.encode()).hexdigest()[:12]}"


def _contract_of(adapter: object) -> _Contract:
    return _WRAPPER if _has(adapter, "wrap") and not _has(adapter, "build") else _PIPELINE


def _has(adapter: object, method: str) -> bool:
    return callable(getattr(adapter, method, None))


def describe(reference: str) -> Description | WrapperDescription:
    """Load the implementation and let it describe itself.

    Raises:
        BadAdapterError: as for `load`, or ``describe()`` raised or returned something else; an `Unsupported`
            (an engine that is not installed, or too old) is shown unchanged.
        ContractError: as for `load`.
    """
    adapter = load(reference)
    try:
        description = adapter.describe()
    except Unsupported as reason:
        raise BadAdapterError(f"--impl {reference!r}: {reason}") from reason
    except Exception as error:
        where = resolve(reference).rpartition(":")[0]
        raise BadAdapterError(f"--impl {reference!r}: describe() raised {_told(error, where)}") from error
    contract = _contract_of(adapter)
    if not isinstance(description, contract.description):
        expected = f"{contract.protocol.rpartition('.')[0]}.{contract.description.__name__}"
        raise BadAdapterError(
            f"--impl {reference!r}: describe() returned {type(description).__name__} {description!r:.80}; "
            f"expected {expected}"
        )
    _check_types(description, contract, reference)
    if isinstance(description, Description) and not description.capabilities.schedules:
        raise BadAdapterError(
            f"--impl {reference!r}: describe() claims no schedule, so nothing can be judged"
        )
    return description  # type: ignore[no-any-return]  # one of the two, as was just seen


def _check_types(description: object, contract: _Contract, reference: str) -> None:
    """Check the types of a description's fields, because dataclasses do not.

    Raises:
        BadAdapterError: a field has a wrong type; the message gives its path.
    """
    try:
        contract.decoder.decode(msgspec.msgpack.encode(description))
    except (msgspec.ValidationError, TypeError) as error:
        text = str(error).replace("`$.", f"`{contract.description.__name__}.")
        text += meant_in_value(text, contract.description)
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
    return f"{type(error).__name__}: {error}{meant_by(error)}{at}"


def _module(where: str, reference: str) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        name = module_of(where)
        if name in sys.modules:
            return sys.modules[name]
        folder = str(Path(where).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # last: a file next to it must not hide a library of that name
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
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        hint = "" if missing is None else _importable(where, reference, missing=missing)
        raise BadAdapterError(
            f"--impl {reference!r}: importing {where} raised {_told(error, where)}{hint}"
        ) from error


def _importable(where: str, reference: str, *, missing: str) -> str:
    """How to name a module that is in this folder, from which Python does not import, as the end of a message."""
    file, package = Path(f"{where.replace('.', '/')}.py"), Path(where.partition(".")[0])
    if file.is_file():
        return f"; for the file, write {file}:{reference.rpartition(':')[2]}"
    if missing == package.name and package.is_dir():
        return f"; ./{package} is here, and can be imported with PYTHONPATH=. before the command"
    return ""
