"""Shards: a certification that is divided among machines, and merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipeconform.campaign.together import merged
from pipeconform.certificate.checks import Checked, check_contents, sound_contents
from pipeconform.certificate.claimed import target_in
from pipeconform.certificate.contents import Certificate, Contents
from pipeconform.certificate.decision import reasons_against
from pipeconform.certificate.machine import differences
from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.certificate.parts import parse_shard
from pipeconform.errors import BadPackageError
from pipeconform.report.result import Cell, Result
from pipeconform.spec import CertificationLevel, certification_level, mandatory
from pipeconform.spec.wrappers import all_requirements

__all__ = ["merge", "merge_into"]

_SAME = (
    "level",
    "standard_version",
    "product_version",
    "implementation",
    "version",
    "reference",
    "source_digest",
    "built_on",
    "engine",
    "claims_digest",
    "seed",
    "draws",
)
"""Fields of the certificate that must be equal in all shards."""


def merge_into(out: Path, paths: Sequence[Path], *, allow_different_environments: bool = False) -> Checked:
    """Merge the shards of one certification into the package `out`, and check it.

    Raises:
        BadPackageError: as for `merge`, or `out` cannot be written.
    """
    contents = merge(paths, allow_different_environments=allow_different_environments)
    write_package(packed(contents), out)
    return check_contents(contents)


def merge(paths: Sequence[Path], *, allow_different_environments: bool = False) -> Contents:
    """Merge the shards of one certification, and decide.

    Raises:
        BadPackageError: a shard cannot be read or is in doubt, is missing or given twice, or they do not belong
            together; the message names the file and the field.
    """
    shards: dict[int, tuple[Path, Contents]] = {}
    total = 0
    for path in paths:
        contents = sound_contents(path)
        if not contents.certificate.shard:
            raise BadPackageError(f"{path}: certificate.json: shard: this package is whole, not a shard")
        number, total = parse_shard(contents.certificate.shard)
        if number in shards:
            raise BadPackageError(f"{path}: shard {number}/{total} is given twice: {shards[number][0]}")
        shards[number] = (path, contents)
    absent = [number for number in range(1, total + 1) if number not in shards]
    if absent or len(shards) != total:
        wanted = ", ".join(f"{number}/{total}" for number in absent) or "none"
        raise BadPackageError(f"shards are missing: {wanted}")
    ordered = [shards[number] for number in sorted(shards)]
    mixed = _check_alike(ordered, allow=allow_different_environments)
    return _merged([contents for _, contents in ordered], mixed=mixed)


def _check_alike(shards: Sequence[tuple[Path, Contents]], *, allow: bool) -> bool:
    """Whether the environments differ; an error unless that is allowed."""
    first_path, first = shards[0]
    mixed = False
    for path, one in shards[1:]:
        for field in _SAME:
            a, b = getattr(first.certificate, field), getattr(one.certificate, field)
            if a != b:
                raise BadPackageError(
                    f"{path}: certificate.json: {field}: {b!r}, but {first_path} says {a!r}: of different runs"
                )
        found = differences(first.environment[0], one.environment[0])
        if found and not allow:
            raise BadPackageError(
                f"{path}: environment.json: {', '.join(found)}: not as in {first_path}; "
                f"--allow-different-environments merges them nevertheless"
            )
        mixed = mixed or bool(found)
    return mixed


def _merged(shards: Sequence[Contents], *, mixed: bool) -> Contents:
    first = shards[0]
    level = certification_level(first.certificate.level)
    result = _result(level, [one.result for one in shards])
    reasons = reasons_against(level, result)
    certificate: Certificate = msgspec.structs.replace(
        first.certificate,
        created=max(one.certificate.created for one in shards),
        shard="",
        shards=len(shards),
        mixed_environments=mixed,
        granted=not reasons,
        reasons=reasons,
        run_ids=result.run.ids,
        environment_digests=tuple(digest for one in shards for digest in one.certificate.environment_digests),
    )
    others: dict[str, bytes] = {}
    for number, one in enumerate(shards, start=1):
        for name, data in one.others.items():
            kept = name if name.startswith("adapter/") else f"shard-{number}/{name}"
            others[kept] = data
    return Contents(
        certificate=certificate,
        result=result,
        environment=tuple(machine for one in shards for machine in one.environment),
        canaries=tuple(canary for one in shards for canary in one.canaries),
        judged=tuple(cell for one in shards for cell in one.judged),
        cases={digest: data for one in shards for digest, data in one.cases.items()},
        others=others,
    )


def _result(level: CertificationLevel, results: Sequence[Result]) -> Result:
    first = results[0]
    order = {row.id: index for index, row in enumerate(all_requirements())}
    target = target_in(first.implementation, max_ranks=level.max_ranks, draws=None)
    assert target is not None, "a shard whose claims cannot be read is in doubt"
    claimed = target.columns

    def place(cell: Cell) -> tuple[object, ...]:
        return (
            order.get(cell.requirement, len(order)),
            cell.variant != "default",
            claimed.index(cell.schedule),
        )

    cells = sorted((cell for one in results for cell in one.cells), key=place)
    digests: dict[str, str] = {}
    for one in results:
        digests |= one.rules
    run = msgspec.structs.replace(
        first.run,
        schedules=tuple(name for name in claimed if any(name in one.run.schedules for one in results)),
        selection=",".join(row.id for row in mandatory(level)),
        unrestricted=True,
        ids=tuple(identifier for one in results for identifier in one.run.ids),
        complete=all(one.run.complete for one in results),
        seconds=round(sum(one.run.seconds for one in results), 1),
    )
    counts = [name for name in first.totals.__struct_fields__ if name not in ("pairs", "together")]
    totals = msgspec.structs.replace(
        first.totals,
        pairs=(),  # results do not say which pairs two shards have in common
        together=merged(pair for one in results for pair in one.totals.together),
        **{name: sum(getattr(one.totals, name) for one in results) for name in counts},
    )
    return msgspec.structs.replace(first, run=run, totals=totals, cells=tuple(cells), rules=digests)
