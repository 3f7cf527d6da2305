"""Writing a stored case as one program: a reproduction that somebody without pipeconform can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeconform.case import blocks
from pipeconform.case.case import Case, Train
from pipeconform.errors import UsageError
from pipeconform.export.assembly import Assembly, assembled, quoted
from pipeconform.report.case_text import describe_case

__all__ = ["Reproduction", "reason_against", "script_of"]

_CARRIED = (
    "pipeconform.adapter",
    "pipeconform.case.data",
    "pipeconform.case.foreign",
    "pipeconform.case.graph_layers",
    "pipeconform.case.modules",
    "pipeconform.case.perturbations",
    "pipeconform.case.whole",
    "pipeconform.errors",
)
_PARTS = tuple(
    f"pipeconform.export.{name}" for name in ("process", "comparison", "unpipelined", "program", "launcher")
)


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What is exported."""

    name: str
    case: Case
    implementation: str
    """As ``--impl`` takes it."""
    engine: str
    """Name and version."""
    found: str
    """What was found, in words; may have several lines."""
    single_process: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of the environment under which it was found, besides those of its reader."""


def reason_against(case: Case) -> str | None:
    """Why no program can show what a case shows, or None."""
    if case.draws_masks:
        return "its dropout masks are drawn by the ranks, and only the harness can replay them"
    if case.is_mistaken or case.world.perturbations:
        return "the harness disturbs the ranks, and a program of its own cannot"
    if case.world.tensor is not None or case.has(blocks.SyncedNorm):
        return "its stages compute over several ranks, and a program of its own does not"
    if any(isinstance(step, Train) and step.by_hand is not None for step in case.program):
        return "its stages are driven by hand, call by call"
    return None


def script_of(wanted: Reproduction) -> str:
    """The program's text.

    Raises:
        UsageError: the case cannot be shown by a program of its own, or the adapter has no source.
    """
    reason = reason_against(wanted.case)
    if reason is not None:
        raise UsageError(f"{wanted.name} cannot be exported: {reason}")
    single = wanted.single_process
    return assembled(
        Assembly(
            head=_head(wanted),
            parts=_PARTS,
            constants={
                'CASE = ""': f"CASE = {quoted(repr(wanted.case))}",
                "WORLD = 0": f"WORLD = {wanted.case.world.size}",
                "WORLDS: tuple[int, ...] = ()": f"WORLDS = ({1 if single else wanted.case.world.size},)",
                "SINGLE_PROCESS = False": f"SINGLE_PROCESS = {single}",
                'FOUND = ""': f"FOUND = {quoted(wanted.found)}",
            },
            carried=_CARRIED,
            implementation=wanted.implementation,
            settings=wanted.settings,
        )
    )


def _head(wanted: Reproduction) -> list[str]:
    return [
        f"{wanted.engine}: {wanted.found.splitlines()[0]}",
        "",
        "Run it with  python FILE  or  torchrun --nproc-per-node "
        f"{1 if wanted.single_process else wanted.case.world.size} FILE ; it needs torch and the engine only.",
        "Exit code 1: reproduced. It compares with the same model run without a pipeline.",
        "",
        "The case:",
        *(f"  {line}" for line in describe_case(wanted.case).splitlines()),
    ]
