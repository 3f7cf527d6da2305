"""An agent's numbers, as torchrun or Slurm sets them, and the network interface of its address."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from pipeconform.attach.greeting import Identity
from pipeconform.errors import UsageError

__all__ = ["forget_launcher", "host_and_port", "identity_of", "interface_of"]

_NUMBERS = {
    "rank": ("RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"),
    "local_rank": ("LOCAL_RANK", "SLURM_LOCALID"),
    "node": ("GROUP_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX"),
}
_LAUNCHERS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
_SIOCGIFADDR = 0x8915


def identity_of(environment: Mapping[str, str], *, address: str) -> Identity:
    """The agent's numbers in its launcher's job; all 0 without a launcher.

    Raises:
        UsageError: a launcher's variable is no number.
    """
    numbers: dict[str, int] = {}
    for field, names in _NUMBERS.items():
        name = next((name for name in names if name in environment), None)
        text = "0" if name is None else environment[name]
        if not text.isdecimal():
            raise UsageError(f"{name}={text!r}: expected a number, as torchrun or srun sets it")
        numbers[field] = int(text)
    return Identity(host=socket.gethostname(), pid=os.getpid(), address=address, **numbers)


def forget_launcher(environment: MutableMapping[str, str]) -> None:
    """Remove the launcher's variables about the agents' job: ranks would take it for their own world."""
    for name in list(environment):
        if name in (*_LAUNCHERS, *_SLURM) or name.startswith(_PREFIXES):
            del environment[name]


def host_and_port(text: str, *, option: str) -> tuple[str, int]:
    """The parts of ``HOST:PORT`` or ``[V6]:PORT``.

    Raises:
        UsageError: it is neither.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {text!r}: expected HOST:PORT")
    return host, int(port)


def interface_of(address: str) -> str | None:
    """The name of the network interface that has `address`; None if it cannot be found."""
    if sys.platform != "linux":
        return None
    if ":" in address:
        return _interface_of_v6(address)
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return "lo" if address.startswith("127.") else None


def _interface_of_v6(address: str) -> str | None:
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    try:
        rows = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    return next((row.split()[5] for row in rows if row.split()[0] == wanted), None)
