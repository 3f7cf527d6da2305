"""Writing a wrapper's stored case as one program: a reproduction that somebody without pipeconform can run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from msgspec import structs

from pipeconform.case.strict import Strict
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.export.assembly import Assembly, assembled, quoted
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
from pipeconform.report.wrapper_text import describe_wrapper_case

__all__ = ["WrapperReproduction", "wrapper_script_of"]

_PARTS = (
    "pipeconform.export.process",
    "pipeconform.replication.export.program",
    "pipeconform.export.launcher",
)
_CARRIED = (
    "pipeconform.case.wrapper_case",
    "pipeconform.replication.evidence",
    "pipeconform.replication.oracle",
    "pipeconform.replication.rank",
    "pipeconform.sharding",
    "pipeconform.wrapper",
)


@dataclass(frozen=True, kw_only=True)
class WrapperReproduction:
    """What is exported."""

    case: WrapperCase
    implementation: str
    """As ``--impl`` takes it."""
    wrapper: str
    """Name and version."""
    found: str
    """What was found, in words; may have several lines."""
    requirements: tuple[str, ...]
    """Those that the program judges the case by."""


def wrapper_script_of(wanted: WrapperReproduction) -> str:
    """The program's text.

    Raises:
        UsageError: the adapter, or what it imports, has no source.
    """
    case = wanted.case
    judges = {one: WRAPPER_JUDGEMENTS[one].judge for one in wanted.requirements}
    words = 'SAW, WRONG = "a violation", "a requirement is not met"'
    named = {one: f"{judge.__module__}:{judge.__qualname__}" for one, judge in judges.items()}
    return assembled(
        Assembly(
            head=_head(wanted),
            parts=_PARTS,
            constants={
                'CASE = ""': f"CASE = {quoted(_expression(case))}",
                "JUDGES: dict[str, str] = {}": f"JUDGES = {named!r}",
                "WORLDS: tuple[int, ...] = ()": f"WORLDS = {case.world_sizes!r}",
                'FOUND = ""': f"FOUND = {quoted(wanted.found)}",
                'SAW, WRONG = "wrong values", "values are wrong"': words,
            },
            carried=(*_CARRIED, *(judge.__module__ for judge in judges.values())),
            implementation=wanted.implementation,
        )
    )


def _head(wanted: WrapperReproduction) -> list[str]:
    case = wanted.case
    by = (
        f"  or  torchrun --nproc-per-node {case.ranks} FILE"
        if not case.loaded_by
        else ", which starts two worlds"
    )
    return [
        f"{wanted.wrapper}: {wanted.found.splitlines()[0]}",
        "",
        f"Run it with  python FILE{by} ; it needs torch, numpy and the wrapper only.",
        "Exit code 1: reproduced. It compares with the same module without a wrapper, once per rank, on the same data.",
        "",
        "The case:",
        *(f"  {line}" for line in describe_wrapper_case(case).splitlines()),
    ]


def _expression(value: Any) -> str:
    """An expression of a case: nothing that is the default."""
    if isinstance(value, Strict):
        usual = {field.name: field.default for field in structs.fields(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        usual = {field.name: field.default for field in fields(value)}
    elif isinstance(value, tuple):
        return _tuple(map(_expression, value))
    else:
        return repr(value)
    own = {name: getattr(value, name) for name in usual}
    told = ", ".join(f"{name}={_expression(one)}" for name, one in own.items() if one != usual[name])
    return f"{type(value).__name__}({told})"


def _tuple(items: Iterable[str]) -> str:
    inside = list(items)
    return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
