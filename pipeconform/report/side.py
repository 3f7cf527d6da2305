"""One of several results: what was judged there, by what and where, and what tells it from the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from pipeconform.report.result import Result
from pipeconform.report.words import moment, under

__all__ = ["Side", "differing", "facts", "only_torch_changed", "selection_words", "side_of"]

_DIGITS = 12  # of a digest
_OF_ANY_RUN = frozenset({"torch", "run of", "file", "selection", "complete"})
"""What may differ, beside torch, between two runs of the same adapter in the same environment on the same cases."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The implementation, environment and settings of one result."""

    implementation: str
    version: str
    source_digest: str
    standard: str
    product: str
    torch: str
    device: str
    profile: str
    seed: int
    complete: bool
    reference: str = ""
    """The adapter, as ``--impl`` was given."""
    created: str = ""
    selection: str = ""
    """The requirements and chapters that were asked for; empty for all."""
    schedules: tuple[str, ...] = ()
    """Those that were judged, if that was a choice; empty for all that are claimed."""
    file: str = ""
    """Where the result was read."""
    python: str = ""


def side_of(result: Result, *, file: Path | None = None) -> Side:
    """The side that a result is, read from `file`."""
    one, place, run = result.implementation, result.environment, result.run
    return Side(
        implementation=one.name,
        version=one.version,
        source_digest=one.source_digest,
        standard=result.standard_version,
        product=result.product_version,
        torch=place.torch,
        device=place.device,
        profile=run.profile,
        seed=run.seed,
        complete=run.complete,
        reference=one.reference,
        created=result.created,
        selection=run.selection,
        schedules=() if run.unrestricted else run.schedules,
        file="" if file is None else str(file),
        python=place.python,
    )


def selection_words(side: Side) -> str:
    """What was asked for: ``all requirements``, ``requirements TRN, FWD-1 under GPipe``."""
    asked = ", ".join(side.selection.split(","))
    return (f"requirements {asked}" if asked else "all requirements") + (
        under(*side.schedules) if side.schedules else ""
    )


def facts(side: Side) -> Mapping[str, str]:
    """Everything that may tell a side from another, by name, the most telling first."""
    return dict(_facts(side))


def _facts(side: Side) -> Iterator[tuple[str, str]]:
    yield "release", f"{side.implementation} {side.version}".rstrip()
    yield "run of", moment(side.created)
    yield "adapter", side.reference
    yield "adapter's digest", side.source_digest[:_DIGITS] or "not recorded"
    yield "torch", side.torch
    yield "python", side.python
    yield "device", side.device
    yield "standard", side.standard
    yield "pipeconform", side.product
    yield "profile", f"{side.profile}, seed {side.seed}"
    yield "selection", selection_words(side)
    yield "complete", "yes" if side.complete else "no: stopped early"
    yield "file", side.file


def differing(sides: Sequence[Side]) -> Mapping[str, tuple[str, ...]]:
    """The facts in which the sides are not all alike, each with its value on every side."""
    rows = [facts(side) for side in sides]
    values = {name: tuple(row[name] for row in rows) for name in (rows[0] if rows else ())}
    return {name: several for name, several in values.items() if len(set(several)) > 1}


def only_torch_changed(old: Side, new: Side) -> bool:
    """Whether torch differs, and the adapter, the implementation, the environment and what cases are drawn do not.

    An implementation that is torch's own has torch's version, so that its version differs, too. An adapter whose digest
    was not recorded may have changed.
    """
    apart = differing((old, new)).keys()
    with_torch = old.implementation == new.implementation and all(
        side.version.partition("+")[0] == side.torch.partition("+")[0] for side in (old, new)
    )
    return (
        "torch" in apart
        and bool(new.source_digest)
        and not apart - _OF_ANY_RUN - ({"release"} if with_torch else set())
    )
