"""``pipeconform doctor``: what this machine can run, and what to do about what it cannot."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import click

from pipeconform.commands.checks import Check, State
from pipeconform.commands.device_checks import on_device
from pipeconform.commands.options import device_options
from pipeconform.commands.say import say
from pipeconform.errors import PipeconformError
from pipeconform.ranks.crew import Crew
from pipeconform.ranks.devices import Machine, probe
from pipeconform.ranks.forkserver import ForkServer
from pipeconform.ranks.pool import Pool
from pipeconform.supported import describe_range, torch_version, why_unsupported, why_untested

__all__ = ["doctor", "report"]

_SHARED = Path("/dev/shm")  # noqa: S108 - looked at, not written to
_LEAST_SHARED = 64 << 20  # bytes: all that containers often give /dev/shm
_LEAST_TEMPORARY = 512 << 20
_FORMATION_LIMIT = 60.0  # seconds
_SLOW = 30.0  # seconds for everything a first case needs


@click.command(short_help="Check what this machine can run.")
@device_options
def doctor(device: str, backend: str, ranks_per_device: int) -> int:
    """Check what this machine can run. Exit code 3: it cannot run the suite.

    With --device TYPE also what the device and its backend can do: copies, messages, collectives, batches, random
    numbers, repeated operators, float64, and the end of a group that something is pending in.
    """
    failed = False
    for check in itertools.chain(
        _checks(), on_device(device, backend=backend, ranks_per_device=ranks_per_device)
    ):
        failed = failed or check.state == "FAIL"
        say(report(check))
    asked = (
        ""
        if device == "cpu"
        else f" --device {device}" + ("" if backend == "auto" else f" --backend {backend}")
    )
    say(
        "\nthis machine cannot run the suite yet"
        if failed
        else f"\nready: pipeconform run --impl torch{asked}"
    )
    return 3 if failed else 0


def report(check: Check) -> str:
    """A check on one line, and its remedy on a second."""
    line = f"{check.state:<4}  {check.name:<16}  {check.text}"
    return f"{line}\n      {'':<16}  -> {check.remedy}" if check.remedy else line


def _checks() -> Iterator[Check]:
    """All checks, cheap ones first; later ones rely on earlier ones."""
    yield _python()
    torch = _torch()
    yield torch
    yield _plugin()
    yield _cores()
    yield _temporary_files()
    if _SHARED.is_dir():
        yield _space(
            "shared memory",
            _SHARED,
            least=_LEAST_SHARED,
            remedy=f"remount {_SHARED} larger (docker run --shm-size=1g)",
        )
    if torch.state == "FAIL":
        return
    yield _devices()
    yield _rank_processes()


def _python() -> Check:
    text = f"{platform.python_version()} ({sys.executable})"
    return Check(name="python", state="ok", text=text)


def _torch() -> Check:
    version = torch_version()
    reason = why_unsupported(version)
    untested = why_untested(version)
    if reason is None and untested is not None:
        return Check(
            name="torch",
            state="warn",
            text=untested.removeprefix("torch "),
            remedy="verdicts may blame the release for what an adapter or the recorder does not know of it",
        )
    if reason is None:
        return Check(name="torch", state="ok", text=f"{version} (tested with {describe_range()})")
    what, _, remedy = reason.partition("; ")
    return Check(name="torch", state="FAIL", text=what, remedy=remedy)


def _plugin() -> Check:
    version = metadata.version("pytest")
    found = [point.value for point in metadata.entry_points(group="pytest11", name="pipeconform")]
    if found:
        return Check(name="pytest", state="ok", text=f"{version}, with the plugin {found[0]}")
    return Check(
        name="pytest",
        state="warn",
        text=f"{version}, but pipeconform's plugin is not registered, so plain pytest does not load it",
        remedy="install pipeconform again ('pip install .'); 'pipeconform run' works without it",
    )


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores >= 2:
        return Check(name="cores", state="ok", text=f"{cores} (a run keeps one core per rank busy)")
    return Check(
        name="cores",
        state="warn",
        text="1: ranks take turns on it",
        remedy="expect a run to take several times longer",
    )


def _temporary_files() -> Check:
    name, remedy = "temporary files", "point TMPDIR to a folder with room"
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        return Check(name=name, state="FAIL", text=error.strerror or str(error), remedy=remedy)
    return _space(name, folder, least=_LEAST_TEMPORARY, remedy=remedy)


def _space(name: str, folder: Path, *, least: int, remedy: str) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(name=name, state="FAIL", text=f"{folder}: {error.strerror or error}", remedy=remedy)
    text = f"{folder}: {free / 2**30:.1f} GiB free"
    if free >= least:
        return Check(name=name, state="ok", text=text)
    return Check(name=name, state="warn", text=text, remedy=f"{least >> 20} MiB are wanted: {remedy}")


def _devices() -> Check:
    return _checked("devices", lambda: _describe_machine(probe("auto")))


def _describe_machine(machine: Machine) -> tuple[State, str, str]:
    if machine.error is not None:
        return "warn", f"{machine.device_type}: {machine.error}", "use --device cpu"
    if machine.count is None:
        return "ok", f"CPU only, backend {machine.backend}: --device cpu", ""
    backend = machine.backend or "none by default: give --backend"
    kind = machine.device_type
    text = f"{machine.count} {kind} (--device {kind}, backend {backend}), and the CPU"
    if machine.count < 2:
        return "warn", text, "--ranks-per-device N lets ranks share a device"
    return "ok", text, ""


def _rank_processes() -> Check:
    return _checked("rank processes", _form_two)


def _form_two() -> tuple[State, str, str]:
    """Start the fork server and form a gloo group of two ranks, twice: cold and warm."""
    begun = time.monotonic()
    with ForkServer() as server:
        server.wait_until_started()
        started = time.monotonic()
        with Pool(Crew(server, size=2, formation_limit=_FORMATION_LIMIT)) as pool:
            pool.wait_until_formed()
        cold = time.monotonic()
        with Pool(Crew(server, size=2, formation_limit=_FORMATION_LIMIT)) as pool:
            pool.wait_until_formed()
        warm = time.monotonic()
    text = (
        f"fork server up in {started - begun:.1f} s, a gloo group of 2 in {cold - started:.2f} s, "
        f"the next one in {warm - cold:.2f} s"
    )
    if warm - begun > _SLOW:
        return (
            "warn",
            text,
            "the machine is very busy, or its disk is slow: slow cases may be reported as hangs",
        )
    return "ok", text, ""


def _checked(name: str, look: Callable[[], tuple[State, str, str]]) -> Check:
    """The check that `look` makes; failed, with the error's message, if it raises one of our errors."""
    try:
        state, text, remedy = look()
    except PipeconformError as error:
        first, _, rest = str(error).partition("\n")
        return Check(name=name, state="FAIL", text=first, remedy=rest.strip())
    return Check(name=name, state=state, text=text, remedy=remedy)
