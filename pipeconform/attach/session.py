"""A run on attached ranks: listen, wait for agents, see that they judge the same adapter, send them home."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeconform.attach.greeting import printable
from pipeconform.attach.hub import Hub
from pipeconform.attach.pools import AttachedPools, Controller
from pipeconform.attach.token import read_token
from pipeconform.errors import HarnessError, UsageError
from pipeconform.run.devices import Devices, Machine, resolve
from pipeconform.run.source import Source
from pipeconform.run.verdict import Returned

__all__ = ["Attach", "attached_devices", "controller_of", "require_same_source"]

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "npu": "hccl"}
_SOURCE_TASK = "pipeconform.run.source:answer"
_SOURCE_LIMIT = 180.0  # seconds to import the implementation


@dataclass(frozen=True, kw_only=True)
class Attach:
    """Where to listen for agents, and how many to wait for."""

    host: str
    port: int
    least: int | None = None
    """None: one for every rank of the largest world."""
    patience: float = 120.0
    """Seconds to wait for agents, at the beginning and when some were lost."""
    token_file: Path | None = None


def attached_devices(device: str, *, backend: str, ranks_per_device: int) -> Devices:
    """Devices of the agents' hosts, which this machine need not have.

    Raises:
        UsageError: the type is left open, or its backend is.
    """
    if device == "auto":
        raise UsageError("--device auto asks this machine; with --attach name the type that the agents have")
    machine = Machine(device_type=device, count=None, backend=_BACKENDS.get(device))
    return resolve(device, backend=backend, ranks_per_device=ranks_per_device, machine=machine)


@contextmanager
def controller_of(
    attach: Attach, *, devices: Devices, largest: int, say: Callable[[str], None]
) -> Iterator[Controller]:
    """Listen, wait for agents, and send them home at the end.

    Raises:
        UsageError: there is no token, or the address cannot be listened on.
        TooFewAgentsError: not enough agents came.
    """
    token = read_token(attach.token_file)
    hub = Hub(attach.host, attach.port, token=token, say=say)
    try:
        least = largest if attach.least is None else attach.least
        say(f"listens on {hub.address} for agents; needs {least}, waits up to {attach.patience:g} s")
        controller = Controller(hub, least=least, patience=attach.patience, devices=devices, say=say)
        controller.gather(limit=attach.patience)
        yield controller
    finally:
        hub.close()


def require_same_source(pools: AttachedPools, reference: str, here: Source) -> None:
    """Refuse agents whose copy of the adapter is another than this machine's.

    Raises:
        UsageError: a copy differs; host and file are named.
        HarnessError: an agent's rank cannot tell.
    """
    vector, identities = pools.everywhere(_SOURCE_TASK, reference.encode(), time_limit=_SOURCE_LIMIT)
    for identity, verdict in zip(identities, vector, strict=True):
        if not isinstance(verdict, Returned):
            raise HarnessError(
                f"{identity} cannot import the implementation as this machine does:\n{vector.explain()}"
            )
        there = msgspec.msgpack.decode(verdict.value, type=Source)
        if there != here:
            raise UsageError(
                f"{identity} has another {printable(there.name) or 'adapter'} than this machine's {here.name} "
                f"({_digest(there)} instead of {_digest(here)}): all hosts must have the same file"
            )


def _digest(source: Source) -> str:
    return hashlib.sha256(source.text).hexdigest()[:12]
