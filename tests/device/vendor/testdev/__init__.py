"""The package of an accelerator's vendor, for tests: a device of torch's and a backend of process groups.

torch loads it by its entry point in ``torch.backends``, and then ``torch.device("testdev")`` exists, ``torch.testdev``
is this module, and ``torch.distributed`` has the backend ``testccl``. It must have been compiled before.
The variable ``TESTDEV_SWITCHES`` has the properties that are switched on, such as ``nccl,-late`` (`csrc/switches.cpp`).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import torch

from testdev.library import NAME, library

_C: Any = None


def autoload() -> None:
    """Make device and backend known to torch."""
    global _C  # noqa: PLW0603 - the compiled module, which torch has to be told about first
    if not library().exists():
        raise RuntimeError(f"testdev is not compiled: python -m tests.device.building makes {library()}")
    spec = importlib.util.spec_from_file_location(NAME, library())
    assert spec is not None
    assert spec.loader is not None
    _C = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(_C)
    torch.utils.rename_privateuse1_backend("testdev")
    torch._register_device_module("testdev", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if torch.distributed.is_available():
        devices = ["testdev"] if switches()["device-only"] else ["testdev", "cpu"]
        torch.distributed.Backend.register_backend("testccl", _create, extended_api=True, devices=devices)
    atexit.register(_C.stop)


def _create(options: Any, _own: Any) -> Any:
    return _C.create_backend(
        options.store, options.group_rank, options.group_size, options.timeout.total_seconds()
    )


def switches() -> dict[str, bool]:
    """Each property with whether it is switched on."""
    return dict(_C.switches())


def set_switch(name: str, on: bool) -> None:
    """Switch a property in this process."""
    _C.set_switch(name, on)


@contextlib.contextmanager
def switched(*names: str) -> Iterator[None]:
    """Switch properties on for a while, and the others off."""
    before = switches()
    for name in before:
        set_switch(name, name in names)
    try:
        yield
    finally:
        for name, on in before.items():
            set_switch(name, on)


# What torch asks a device's module for.


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return _C.is_initialized()


def __getattr__(name: str) -> Any:
    # torch.utils.checkpoint restores random numbers of the device only where `_initialized` is true
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def _lazy_init() -> None:
    _C.initialize()


init = _lazy_init


def device_count() -> int:
    return _C.device_count()


def current_device() -> int:
    return _C.current_device()


def set_device(wanted: Any) -> None:
    _C.set_device(_index(wanted))


def get_device_name(wanted: Any = None) -> str:
    return f"testdev ({_index(wanted)})"


def get_device_capability(wanted: Any = None) -> dict[str, Any]:
    return torch.accelerator.get_device_capability(_index(wanted))


class device:
    """The current device within a ``with`` statement."""

    def __init__(self, wanted: Any) -> None:
        self._index = _index(wanted)
        self._before = -1

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._index)

    def __exit__(self, *_: object) -> None:
        set_device(self._before)


# Streams.


class Stream(torch.Stream):
    """A new stream."""

    def __new__(cls, device: Any = None, priority: int = 0, **ids: Any) -> Any:
        if ids:
            return super().__new__(cls, priority=priority, **ids)
        return super().__new__(cls, device=torch.device("testdev", _index(device)), priority=priority)


class Event(torch.Event):
    """A new event."""

    def __new__(cls, device: Any = None, enable_timing: bool = False, **_: Any) -> Any:
        return super().__new__(
            cls, device=torch.device("testdev", _index(device)), enable_timing=enable_timing
        )


def synchronize(wanted: Any = None) -> None:
    _C.synchronize(_index(wanted))


def current_stream(wanted: Any = None) -> Any:
    return torch.accelerator.current_stream(_index(wanted))


def default_stream(wanted: Any = None) -> Any:
    return torch.Stream(stream_id=0, device_index=_index(wanted), device_type=20)


def set_stream(stream: Any) -> None:
    if stream is not None:
        torch.accelerator.set_stream(stream)


class stream:
    """The current stream within a ``with`` statement."""

    def __init__(self, wanted: Any) -> None:
        self.stream = wanted

    def __enter__(self) -> Any:
        if self.stream is None:
            return None
        self._before = current_stream(self.stream.device)
        set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            set_stream(self._before)


# Random numbers.


def manual_seed(seed: int) -> None:
    _C.default_generator(current_device()).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _C.default_generator(index).manual_seed(seed)


def seed() -> None:
    _C.default_generator(current_device()).seed()


def initial_seed() -> int:
    return _C.default_generator(current_device()).initial_seed()


def get_rng_state(device: Any = "testdev") -> torch.Tensor:
    return _C.default_generator(_index(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "testdev") -> None:
    _C.default_generator(_index(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    for index, state in enumerate(states):
        set_rng_state(state, index)


# Memory.


def memory_allocated(wanted: Any = None) -> int:
    return _C.bytes_in_use(_index(wanted))


def max_memory_allocated(wanted: Any = None) -> int:
    return _C.most_bytes_in_use(_index(wanted))


def reset_peak_memory_stats(wanted: Any = None) -> None:
    _C.forget_most_bytes(_index(wanted))


def mem_get_info(wanted: Any = None) -> tuple[int, int]:
    return _C.memory_size() - memory_allocated(wanted), _C.memory_size()


def empty_cache() -> None:
    """Do nothing: freed memory stays with its stream."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def _index(wanted: Any) -> int:
    if wanted is None:
        return current_device()
    if isinstance(wanted, int):
        return wanted
    found = torch.device(wanted).index
    return current_device() if found is None else found
