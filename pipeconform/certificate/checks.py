"""Checking a package from its files alone: every doubt is named with file and field."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeconform.case.any_case import decode_any_case, world_sizes
from pipeconform.certificate.contents import (
    CANARIES,
    CERTIFICATE,
    ENVIRONMENT,
    JUDGED,
    RESULT,
    Certificate,
    Contents,
    adapter_name,
    case_name,
    contents_of,
)
from pipeconform.certificate.decision import reasons_against
from pipeconform.certificate.package import Doubt, manifest_doubts, read_package
from pipeconform.certificate.weakening import weakening
from pipeconform.errors import BadCaseError, UsageError
from pipeconform.report.result import Result
from pipeconform.spec import (
    STANDARD_VERSION,
    CertificationLevel,
    certification_level,
    mandatory,
    rule_digest,
)
from pipeconform.spec.wrappers import all_requirements

__all__ = ["SEED", "Checked", "check_contents", "check_package"]

SEED = 0
"""The seed of every certification: what is judged is the same for everybody."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a package says, and what speaks against believing it."""

    certificate: Certificate | None
    """None when it could not be read."""
    reasons: tuple[str, ...]
    """Why the level is not deserved, derived anew from the result."""
    doubts: tuple[Doubt, ...]
    contents: Contents | None = None

    @property
    def granted(self) -> bool:
        """Whether the level is deserved beyond doubt."""
        return self.certificate is not None and not self.reasons and not self.doubts


def check_package(path: Path) -> Checked:
    """Read and check a package; nothing is executed.

    Raises:
        BadPackageError: it cannot be read at all.
    """
    package = read_package(path)
    doubts = list(manifest_doubts(package))
    contents, more = contents_of(package)
    doubts += more
    if contents is None:
        return Checked(certificate=None, reasons=(), doubts=tuple(doubts))
    checked = check_contents(contents)
    return Checked(
        certificate=checked.certificate,
        reasons=checked.reasons,
        doubts=(*doubts, *checked.doubts),
        contents=contents,
    )


def check_contents(contents: Contents) -> Checked:
    """Check what a package holds, whatever file it comes from."""
    certificate = contents.certificate
    doubts = list(_identity(contents))
    try:
        level = certification_level(certificate.level)
        wanted = [row.id for row in mandatory(level)]
    except UsageError as error:
        doubts.append(Doubt(file=CERTIFICATE, field="level", text=str(error)))
        return Checked(certificate=certificate, reasons=(), doubts=tuple(doubts))
    doubts += _standard(contents)
    doubts += _asked(level, contents)
    doubts += _counts(contents.result)
    doubts += _cases(contents)
    doubts += _canaries(wanted, contents)
    doubts += _ranks(level, contents.result)
    reasons = _reasons(level, contents)
    doubts += _decided(certificate, reasons)
    return Checked(certificate=certificate, reasons=reasons, doubts=tuple(doubts))


def _reasons(level: CertificationLevel, contents: Contents) -> tuple[str, ...]:
    if contents.certificate.shard:
        return (f"shard {contents.certificate.shard} decides nothing; merge all of them",)
    return reasons_against(level, contents.result)


def _decided(certificate: Certificate, reasons: tuple[str, ...]) -> Iterator[Doubt]:
    if certificate.granted != (not reasons):
        says, is_so = ("granted", "is not") if certificate.granted else ("refused", "is")
        yield Doubt(
            file=CERTIFICATE,
            field="granted",
            text=f"says {says}, but by the result the level {is_so} deserved",
        )


def _identity(contents: Contents) -> Iterator[Doubt]:
    """The same implementation everywhere: files of two packages do not make one."""
    certificate, result = contents.certificate, contents.result
    one = result.implementation
    for field, said, shown in (
        ("implementation", certificate.implementation, one.name),
        ("version", certificate.version, one.version),
        ("reference", certificate.reference, one.reference),
        ("source_digest", certificate.source_digest, one.source_digest),
        ("product_version", certificate.product_version, result.product_version),
        ("standard_version", certificate.standard_version, result.standard_version),
        ("seed", certificate.seed, result.run.seed),
        ("draws", certificate.draws, result.run.corpus),
        ("weakening", certificate.weakening, weakening(result)),
    ):
        if said != shown:
            yield Doubt(file=CERTIFICATE, field=field, text=f"{said!r}, but {RESULT} says {shown!r}")
    environments = [machine.environment for machine in contents.environment]
    if result.environment not in environments:
        yield Doubt(file=ENVIRONMENT, field="environment", text=f"not the environment of {RESULT}")
    if len(environments) != max(1, certificate.shards):
        text = f"{len(environments)} machines, but {CERTIFICATE} says {certificate.shards} shards"
        yield Doubt(file=ENVIRONMENT, text=text)
    if len(set(map(repr, contents.environment))) > 1 and not certificate.mixed_environments:
        yield Doubt(file=ENVIRONMENT, text="the shards ran in different environments")
    if certificate.source_digest:
        yield from _source(contents)


def _source(contents: Contents) -> Iterator[Doubt]:
    name = adapter_name(contents.result.implementation.source)
    text = contents.others.get(name)
    if text is None:
        yield Doubt(file=name, text="the adapter's source is missing")
    elif hashlib.sha256(text).hexdigest() != contents.certificate.source_digest:
        yield Doubt(file=name, text=f"not the source that {CERTIFICATE} names (source_digest)")


def _standard(contents: Contents) -> Iterator[Doubt]:
    found = contents.result.standard_version
    if found != STANDARD_VERSION:
        yield Doubt(
            file=RESULT,
            field="standard_version",
            text=f"{found}, out of date or too new: this version of pipeconform checks {STANDARD_VERSION}",
        )
        return
    current = {row.id: rule_digest(row) for row in all_requirements()}
    changed = [name for name, digest in contents.result.rules.items() if current.get(name, digest) != digest]
    judged = {cell.requirement for cell in contents.result.cells}
    changed += sorted(judged - contents.result.rules.keys())
    if changed:
        yield Doubt(file=RESULT, field="rules", text=f"not the rules of this version: {', '.join(changed)}")


def _asked(level: CertificationLevel, contents: Contents) -> Iterator[Doubt]:
    """What a certification runs is fixed."""
    run, result = contents.result.run, contents.result
    if run.seed != SEED:
        yield Doubt(file=RESULT, field="run.seed", text=f"{run.seed}, a certification uses {SEED}")
    if run.corpus < level.draws:
        text = f"{run.corpus} cases were drawn, level {level.title} demands {level.draws}"
        yield Doubt(file=RESULT, field="run.corpus", text=text)
    if result.expectations is not None:
        text = "expected failures were allowed; a certification expects none"
        yield Doubt(file=RESULT, field="expectations", text=text)
    for cell in result.cells:
        if any(violation.expected for violation in cell.violations):
            text = f"{cell.requirement} under {cell.schedule} counts a failure as expected"
            yield Doubt(file=RESULT, field="cells.violations.expected", text=text)


def _counts(result: Result) -> Iterator[Doubt]:
    """Numbers that must agree: somebody who changes one forgets another."""
    keys = Counter((cell.requirement, cell.schedule, cell.variant) for cell in result.cells)
    for (requirement, schedule, variant), number in keys.items():
        if number > 1:
            text = f"{requirement} under {schedule} ({variant}) is there {number} times"
            yield Doubt(file=RESULT, field="cells", text=text)
    for cell in result.cells:
        where = f"{cell.requirement} under {cell.schedule}"
        if sum(cell.counts.values()) != cell.judgements:
            text = f"{where}: the counts do not add up to {cell.judgements} judgements"
            yield Doubt(file=RESULT, field="cells.counts", text=text)
        if cell.distinct_cases > cell.judgements:
            text = f"{where}: more distinct cases than judgements"
            yield Doubt(file=RESULT, field="cells.distinct_cases", text=text)
        for violation in cell.violations:
            if violation.case.digest != violation.digest:
                text = f"{violation.id}: {violation.digest} is not the digest of its case"
                yield Doubt(file=RESULT, field="cells.violations.digest", text=text)
    if sum(cell.judgements for cell in result.cells) != result.totals.judgements:
        yield Doubt(
            file=RESULT,
            field="totals.judgements",
            text="the cells do not add up to it: some were added or removed",
        )


def _cases(contents: Contents) -> Iterator[Doubt]:
    """Every judged case is there, and is what its name says."""
    judged = {(one.requirement, one.schedule, one.variant): one for one in contents.judged}
    if len(judged) != len(contents.judged):
        yield Doubt(file=JUDGED, text="a cell is listed twice")
    for cell in contents.result.cells:
        found = judged.pop((cell.requirement, cell.schedule, cell.variant), None)
        number = 0 if found is None else len(set(found.digests))
        if number != cell.distinct_cases:
            text = f"{number} for {cell.requirement} under {cell.schedule}, but {RESULT} counts {cell.distinct_cases}"
            yield Doubt(file=JUDGED, field="digests", text=text)
    for requirement, schedule, _ in judged:
        yield Doubt(file=JUDGED, text=f"{requirement} under {schedule} is not in {RESULT}")
    named = {digest for one in contents.judged for digest in one.digests}
    for digest in sorted(named - contents.cases.keys()):
        yield Doubt(file=case_name(digest), text=f"missing, but named in {JUDGED}")
    for digest in sorted(contents.cases.keys() - named):
        yield Doubt(file=case_name(digest), text=f"not named in {JUDGED}")
    for digest, data in contents.cases.items():
        try:
            case = decode_any_case(data, source=case_name(digest))
        except BadCaseError as error:
            yield Doubt(file=case_name(digest), text=str(error))
            continue
        if case.digest != digest:
            yield Doubt(file=case_name(digest), field="digest", text=f"the case's digest is {case.digest}")


def _canaries(wanted: list[str], contents: Contents) -> Iterator[Doubt]:
    """Every mandatory requirement must have caught a fault, on every machine."""
    by_shard: dict[str, set[str]] = {}
    for canary in contents.canaries:
        by_shard.setdefault(canary.shard, set()).add(canary.requirement)
        if not canary.detected:
            text = f"{canary.fault} was not detected: {canary.requirement} would not have noticed it here"
            yield Doubt(file=CANARIES, field="detected", text=text)
    for shard, covered in (by_shard or {"": set()}).items():
        absent = [name for name in wanted if name not in covered]
        if absent:
            where = f" (shard {shard})" if shard else ""
            yield Doubt(file=CANARIES, text=f"no fault tried for {', '.join(absent)}{where}")
    expected = max(1, contents.certificate.shards)
    if contents.canaries and len(by_shard) != expected:
        text = f"from {len(by_shard)} machines, but there were {expected}"
        yield Doubt(file=CANARIES, field="shard", text=text)


def _ranks(level: CertificationLevel, result: Result) -> Iterator[Doubt]:
    """All ranks must have been there, and all of them must have reported."""
    if result.run.max_ranks < max(level.ranks):
        text = f"{result.run.max_ranks}, level {level.title} demands {max(level.ranks)}"
        yield Doubt(file=RESULT, field="run.max_ranks", text=text)
    if (result.implementation.capabilities or {}).get("world") == "single_process":
        return  # one process stands for all ranks
    for cell in result.cells:
        for violation in cell.violations:
            lines = re.findall(r"^rank (\d+)\b", violation.verdicts, re.MULTILINE)
            sizes = world_sizes(violation.case)
            if violation.verdicts and len(set(lines)) not in sizes:
                text = f"{violation.id}: {len(set(lines))} of {sizes[-1]} ranks reported"
                yield Doubt(file=RESULT, field="cells.violations.verdicts", text=text)
