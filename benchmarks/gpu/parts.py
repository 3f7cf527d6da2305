"""What is run on a machine with an accelerator, as data: parts, each with its commands, or why it cannot run there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeconform.ranks.devices import Machine, backend_for, reason_against_sharing

__all__ = ["Part", "Target", "parts_on"]

FOLDER = "{folder}"
"""Stands for the part's own folder in its commands."""
_HANGING = Path(__file__).with_name("hanging.py")
_MOST_RANKS = 4
_CHAPTERS = {"values": "FWD,TRN,SPL", "messages": "COM", "errors": "ERR", "lifecycle": "LIF,SCH,DPC"}
_JUDGED = frozenset({0, 1})
"""Exit codes of `pipeconform run` with a verdict: met, and not met."""
_CASE_LIMIT = 20  # seconds: a rank that polls a device cannot be proved to hang
_SURE_TO_HANG = 8


@dataclass(frozen=True, kw_only=True)
class Part:
    """Commands that are run one after the other, in less than ten minutes, and kept if all end as they should."""

    name: str
    """Also the name of its folder among the results."""
    title: str
    commands: tuple[tuple[str, ...], ...] = ()
    """Arguments of this Python; the last command's exit code is the part's."""
    variables: Mapping[str, str] = field(default_factory=dict)
    codes: frozenset[int] = frozenset({0})
    """The exit codes of commands that did what they should."""
    missing: str = ""
    """Why it cannot run on this machine; empty if it can."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where everything is run."""

    machine: Machine
    backend: str
    library: str = ""
    """An NCCL that lets ranks share a GPU, to be loaded before torch's own; empty for torch's own."""
    shared_release: tuple[int, ...] | None = None
    """The release of NCCL with which ranks share a device; None if it is not NCCL."""
    profile: str = "smoke"
    requirements: tuple[str, ...] = ()
    """Judge these only, for trying this out; all if empty."""
    schedules: str = ""
    """Judge under these only, for trying this out; all if empty."""

    @property
    def count(self) -> int:
        """How many devices ranks can have of their own; as many as are used if it is the CPU."""
        return _MOST_RANKS if self.machine.count is None else self.machine.count

    @property
    def uses_nccl(self) -> bool:
        """Whether NCCL moves the tensors."""
        return backend_for(self.backend, self.machine.device_type) == "nccl"

    @property
    def device(self) -> tuple[str, ...]:
        """The options that choose device and backend."""
        return ("--device", self.machine.device_type, "--backend", self.backend)


@dataclass(frozen=True, kw_only=True)
class _Placing:
    """How ranks are put on devices."""

    name: str
    words: str
    ranks: str
    most: int
    per_device: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""


def parts_on(target: Target) -> tuple[Part, ...]:
    """All parts, the cheapest and those that tell the most first."""
    alone, apart, shared = _placings(target)
    several = apart if not apart.missing else shared
    return (
        _doctor(target, alone if several.missing else several),
        _measured(target, "bits", "Which share of values is the same bits when repeated, per dtype", alone),
        _measured(
            target,
            "memory",
            "Memory of a rank: process and device",
            several if not several.missing else alone,
        ),
        _measured(target, "communicators", "Cost of a communicator, with and without device_id", several),
        _measured(target, "latency", "Latency of messages between two ranks", several),
        _measured(
            target,
            "hang",
            "Two ranks wait for each other: explanation, and the flight recorder's dumps",
            several,
        ),
        _hanging(target, several),
        *(_judged(target, impl, alone, "values", "FWD,TRN,SPL,LIF") for impl in ("reference", "torch")),
        *(
            _judged(target, impl, placing, group, chapters)
            for placing in (apart, shared)
            for group, chapters in _CHAPTERS.items()
            for impl in ("reference", "torch")
        ),
        _workers(target, several),
    )


def _placings(target: Target) -> tuple[_Placing, _Placing, _Placing]:
    kind, count = target.machine.device_type, target.count
    most = min(count, _MOST_RANKS)
    here = f"this machine has {count} {kind} device{'' if count == 1 else 's'}"
    refused = reason_against_sharing(target.shared_release) if target.uses_nccl else None
    return (
        _Placing(name="alone", words="1 rank", ranks="1", most=1, missing="" if count else here),
        _Placing(
            name="apart",
            words=f"2 to {most} ranks, each with a device of its own"
            if most > 2
            else "2 ranks, each with a device of its own",
            ranks=f"2-{most}",
            most=most,
            missing="" if most > 1 else here,
        ),
        _Placing(
            name="shared",
            words="2 to 4 ranks that share a device",
            ranks="2-4",
            most=_MOST_RANKS,
            per_device=_MOST_RANKS,
            variables={"LD_PRELOAD": target.library} if target.library else {},
            missing=refused or ("" if target.machine.count else here),
        ),
    )


def _doctor(target: Target, placing: _Placing) -> Part:
    asked = ("-m", "pipeconform", "doctor", *target.device, "--ranks-per-device", str(placing.per_device))
    return Part(
        name="doctor",
        title=f"What works, before anything is judged ({placing.words})",
        commands=(asked,),
        variables=placing.variables,
        missing=placing.missing,
    )


def _measured(target: Target, name: str, title: str, placing: _Placing) -> Part:
    ranks = str(min(placing.most, 2))
    asked = ("--ranks", ranks, "--ranks-per-device", str(placing.per_device), "--out", FOLDER)
    return Part(
        name=name,
        title=title,
        commands=(("-m", "benchmarks.gpu.measuring", name, *target.device, *asked),),
        variables=placing.variables,
        missing=placing.missing,
    )


def _judged(target: Target, impl: str, placing: _Placing, group: str, chapters: str) -> Part:
    asked, under = _asked(target, chapters), ("--schedules", target.schedules) if target.schedules else ()
    return Part(
        name=f"{impl}-{placing.name}-{group}",
        title=f"{impl}, {placing.words}: {asked}",
        commands=(_run(target, impl, placing, asked, *under),),
        variables=placing.variables,
        codes=_JUDGED,
        missing=placing.missing
        or ("" if asked else f"none of {','.join(target.requirements)} is in {chapters}"),
    )


def _hanging(target: Target, placing: _Placing) -> Part:
    impl = f"{_HANGING}:Hanging"
    return Part(
        name="hanging-engine",
        title="An engine that hangs, judged: it must be found, and explained",
        commands=(
            _run(
                target,
                impl,
                placing,
                "FWD-1",
                "--schedules",
                "GPipe",
                "--examples",
                "1",
                ranks="2",
                limit=_SURE_TO_HANG,
            ),
        ),
        variables=placing.variables,
        codes=frozenset({1}),
        missing=placing.missing,
    )


def _workers(target: Target, placing: _Placing) -> Part:
    """The same cells in one process and in two; `compare` ends with 0 if the verdicts are the same."""
    small = ("--schedules", "GPipe,1F1B", "--examples", "2")
    one, two = f"{FOLDER}/one", FOLDER
    return Part(
        name="two-workers",
        title=f"-n 2 on the same devices, {placing.words}: the verdicts of one process",
        commands=(
            _run(target, "reference", placing, "FWD-1,TRN-1,COM-1", *small, out=one),
            _run(target, "reference", placing, "FWD-1,TRN-1,COM-1", *small, "-n", "2", out=two),
            ("-m", "pipeconform", "compare", f"{one}/result.json", f"{two}/result.json"),
        ),
        variables=placing.variables,
        missing=placing.missing,
    )


def _run(
    target: Target,
    impl: str,
    placing: _Placing,
    requirements: str,
    *more: str,
    ranks: str = "",
    out: str = FOLDER,
    limit: int = _CASE_LIMIT,
) -> tuple[str, ...]:
    return (
        *("-m", "pipeconform", "run", "--impl", impl, *target.device),
        *("--ranks", ranks or placing.ranks, "--ranks-per-device", str(placing.per_device)),
        *("--profile", target.profile, "--requirements", requirements),
        *("--time-limit", str(limit), "--out", out, *more),
    )


def _asked(target: Target, chapters: str) -> str:
    if not target.requirements:
        return chapters
    return ",".join(_within(target.requirements, chapters.split(",")))


def _within(requirements: tuple[str, ...], chapters: list[str]) -> Iterator[str]:
    return (one for one in requirements if one.partition("-")[0] in chapters)
