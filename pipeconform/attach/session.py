"""A run on attached ranks: listen, wait for agents, compare their adapters, send them home."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipeconform.attach.engines import ENGINES, engine_of
from pipeconform.attach.greeting import printable
from pipeconform.attach.hub import Hub
from pipeconform.attach.launch import host_and_port
from pipeconform.attach.pools import AttachedPools, Controller
from pipeconform.attach.supervised import supervised
from pipeconform.attach.token import read_token
from pipeconform.errors import HarnessError, UsageError
from pipeconform.execute.source import Source
from pipeconform.ranks.answered import read_answers
from pipeconform.ranks.devices import Devices, Machine, resolve
from pipeconform.ranks.verdict import Returned

__all__ = [
    "Attach",
    "attach_of",
    "attached_devices",
    "controller_of",
    "kept_controller",
    "require_same_source",
]

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "npu": "hccl", "hpu": "hccl"}
_LAST_PORT = 65535
_SOURCE_TASK = "pipeconform.execute.source:answer"
_SOURCE_LIMIT = 180.0  # seconds to import the implementation


@dataclass(frozen=True, kw_only=True)
class Attach:
    """Where to listen for agents, and how many to wait for."""

    host: str
    """Empty: the address that the engine's agents reach."""
    port: int
    least: int | None = None
    """None: one for every rank of the largest world."""
    patience: float = 120.0
    """Seconds to wait for agents, at the beginning and when some were lost."""
    token_file: Path | None = None
    engine: str = ""
    """What starts the agents, such as ``slurm``; empty if others do."""
    part: int = 0
    """The number of this process among those of a run with ``-n``: each has agents of its own."""

    def of_part(self, part: int) -> Attach:
        """The settings of the process with this number: process 0 listens on the port, process 1 on the next one, ….

        Raises:
            UsageError: there is no such port.
        """
        port = self.port + part if self.port else 0  # 0: any that is free
        if port > _LAST_PORT:
            raise UsageError(
                f"--attach {self.host}:{self.port} with -n: each process listens on a port of its own, and {port} is "
                f"none; the last is {_LAST_PORT}"
            )
        return replace(self, port=port, part=part)


_kept: dict[Attach, Controller] = {}
"""Controllers whose agents stay between two campaigns of this process."""


def attach_of(
    where: str | None,
    *,
    least: int | None = None,
    patience: float | None = None,
    token_file: Path | None = None,
    on: str | None = None,
) -> Attach | None:
    """The settings of ``--attach``, ``--on`` and their options; None for ranks of this machine.

    Raises:
        UsageError: an option that needs ``--attach`` or ``--on`` without it, or an invalid value.
    """
    engine = "" if on in (None, "local") else str(on)
    if engine and engine not in ENGINES:
        raise UsageError(f"--on {engine}: expected {', '.join(ENGINES)}")
    if engine and token_file is not None:
        raise UsageError(f"--on {engine} makes a token for its agents; leave --token-file out")
    if on == "local" and where is not None:
        raise UsageError("--on local has ranks of this machine, --attach those of agents; give one of them")
    if where is None and engine:
        where = ":0"
    if where is None:
        given = {"--min-agents": least, "--agent-wait": patience, "--token-file": token_file}
        alone = [name for name, value in given.items() if value is not None]
        if alone:
            verb = "needs" if len(alone) == 1 else "need"
            raise UsageError(f"{', '.join(alone)} {verb} --attach or --on, which was not given")
        return None
    if least is not None and least < 1:
        raise UsageError(f"--min-agents {least}: a run needs at least 1")
    host, port = ("", 0) if where == ":0" else host_and_port(where, option="--attach")
    chosen = Attach(host=host, port=port, least=least, token_file=token_file, engine=engine)
    return chosen if patience is None else replace(chosen, patience=patience)


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
    if attach in _kept:
        yield _kept[attach]
        return
    least = largest if attach.least is None else attach.least
    agents = max(least, largest)
    engine = None
    if attach.engine:
        engine = engine_of(attach.engine, device_type=devices.device_type, first=attach.part * agents)
    token = read_token(attach.token_file) if engine is None else secrets.token_hex(32).encode()
    host = attach.host or ("" if engine is None else engine.host)
    with ExitStack() as stack:
        hub = Hub(host, attach.port, token=token, say=say)
        stack.callback(hub.close)
        if engine is not None:  # its processes end when their agents have been sent home
            started = supervised(engine, agents=agents, controller=hub.address, token=token.decode(), say=say)
            stack.enter_context(started)
            stack.callback(hub.close)
        say(f"listens on {hub.address} for agents; needs {least}, waits up to {attach.patience:g} s")
        controller = Controller(hub, least=least, patience=attach.patience, devices=devices, say=say)
        controller.gather(limit=attach.patience)
        yield controller


@contextmanager
def kept_controller(
    attach: Attach, *, devices: Devices, largest: int, say: Callable[[str], None]
) -> Iterator[Controller]:
    """Like `controller_of`, but campaigns of this process with the same `attach` share the agents within the context.

    An agent that is sent home does not come back, so a command with several campaigns keeps them.

    Raises:
        UsageError: as above.
        TooFewAgentsError: as above.
    """
    with controller_of(attach, devices=devices, largest=largest, say=say) as controller:
        _kept[attach] = controller
        try:
            yield controller
        finally:
            del _kept[attach]


def require_same_source(pools: AttachedPools, reference: str, here: Source) -> None:
    """Refuse agents whose copy of the adapter differs from this machine's.

    Raises:
        UsageError: a copy differs; the message names host and file.
        HarnessError: an agent's rank cannot read its copy.
    """
    said, identities = pools.everywhere(_SOURCE_TASK, reference.encode(), time_limit=_SOURCE_LIMIT)
    vector = read_answers(said, Source)
    for identity, verdict in zip(identities, vector, strict=True):
        if not isinstance(verdict, Returned):
            raise HarnessError(
                f"{identity} cannot import the implementation as this machine does:\n{vector.explain()}"
            )
        there: Source = verdict.value
        if there != here:
            raise UsageError(
                f"{identity} has another {printable(there.name) or 'adapter'} than this machine's {here.name} "
                f"({_digest(there)} instead of {_digest(here)}): all hosts must have the same file"
            )


def _digest(source: Source) -> str:
    return hashlib.sha256(source.text).hexdigest()[:12]
