"""Checking a package from its files alone; every doubt names a file and a field.

The certificate is compared with the other files (`identity`), every number with its range (`fields`), the cells and
cases with the list that is drawn again from the claims (`agreement`), the canaries with the faults of the level
(`noticed`), and the decision is made again (`decision`), as are the page and the badge (`packing`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeconform.certificate.agreement import list_doubts
from pipeconform.certificate.bounds import require_bounded
from pipeconform.certificate.claimed import claims_of
from pipeconform.certificate.contents import (
    CERTIFICATE,
    ENVIRONMENT,
    RESULT,
    Certificate,
    Contents,
    contents_of,
    data_files,
)
from pipeconform.certificate.decision import reasons_against
from pipeconform.certificate.fields import field_doubts
from pipeconform.certificate.identity import identity_doubts
from pipeconform.certificate.listed import Listed, listed
from pipeconform.certificate.noticed import canary_doubts
from pipeconform.certificate.package import Doubt, Package, manifest_doubts, read_package
from pipeconform.certificate.packing import view_doubts
from pipeconform.certificate.parts import parse_shard
from pipeconform.errors import BadPackageError, TooLargeError, UsageError
from pipeconform.plural import plural
from pipeconform.spec import STANDARD_VERSION, CertificationLevel, certification_level, mandatory

__all__ = ["Checked", "check_contents", "check_files", "check_package", "list_of", "sound_contents"]


_ABOUT_CLAIMS = ("claims_digest", "implementation.capabilities", "implementation.errors")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A package's contents, and the doubts about them."""

    certificate: Certificate | None
    """None if the package could not be decoded."""
    reasons: tuple[str, ...]
    """Why the level is not deserved, derived again from the result."""
    doubts: tuple[Doubt, ...]
    contents: Contents | None = None
    blake2b: bytes = b""
    """The hash of what was checked, which a signature must be of."""
    signed_by: str = ""
    """The key whose signature was checked; empty if none was."""

    @property
    def granted(self) -> bool:
        """Whether the level is deserved and there are no doubts."""
        return self.certificate is not None and not self.reasons and not self.doubts


def check_package(path: Path) -> Checked:
    """Read and check a package; nothing is executed.

    Raises:
        BadPackageError: the package cannot be read.
    """
    package = read_package(path)
    return check_files(package, known=manifest_doubts(package))


def check_files(package: Package, *, known: tuple[Doubt, ...] = ()) -> Checked:
    """Check the files of a package; `known` are doubts from its manifest."""
    contents, more = contents_of(package)
    doubts = [*known, *more]
    if contents is None:
        return Checked(certificate=None, reasons=(), doubts=tuple(doubts), blake2b=package.blake2b)
    doubts += _as_written(package, contents)
    checked = check_contents(contents)
    doubts += checked.doubts
    if not doubts:  # a page of contents that are in doubt says nothing
        doubts += _differing_views(package, contents)
    return Checked(
        certificate=checked.certificate,
        reasons=checked.reasons,
        doubts=tuple(doubts),
        contents=contents,
        blake2b=package.blake2b,
    )


def sound_contents(path: Path) -> Contents:
    """The contents of a package in which there is no doubt.

    Raises:
        BadPackageError: the package cannot be read or is in doubt; the message names the first.
    """
    checked = check_package(path)
    if checked.doubts or checked.contents is None:
        more = len(checked.doubts) - 1
        rest = f" (and {plural(more, 'more doubt')}; 'pipeconform verify' prints all)" if more else ""
        raise BadPackageError(f"{path}: {checked.doubts[0]}{rest}")
    return checked.contents


def _differing_views(package: Package, contents: Contents) -> Iterator[Doubt]:
    found = list(view_doubts(package, contents))
    if found:
        yield from _other_versions(contents)
    yield from found


def _as_written(package: Package, contents: Contents) -> Iterator[Doubt]:
    """Doubts about files that are not byte for byte what pipeconform writes, such as a repeated or unknown key."""
    for name, data in data_files(contents).items():
        if package.files.get(name) != data:
            yield Doubt(file=name, text="not as pipeconform writes these contents")


def check_contents(contents: Contents) -> Checked:
    """Check the contents of a package, without its archive."""
    certificate = contents.certificate
    try:
        level = certification_level(certificate.level)
        wanted = [row.id for row in mandatory(level)]
    except UsageError as error:
        doubt = Doubt(file=CERTIFICATE, field="level", text=str(error))
        return Checked(certificate=certificate, reasons=(), doubts=(doubt,))
    too_large = tuple(_too_large(contents))
    if too_large:  # every decision uses the claims
        return Checked(certificate=certificate, reasons=(), doubts=too_large)
    doubts = [*_standard(contents), *identity_doubts(level, contents), *field_doubts(level, contents)]
    doubts += canary_doubts(wanted, contents)
    if not any(doubt.field in _ABOUT_CLAIMS for doubt in doubts):  # only well-formed claims are drawn from
        doubts += _agreed(level, contents)
    reasons = _reasons(level, contents)
    doubts += _decided(certificate, reasons)
    return Checked(certificate=certificate, reasons=reasons, doubts=tuple(doubts))


def _too_large(contents: Contents) -> Iterator[Doubt]:
    one = contents.result.implementation
    try:
        require_bounded(one.capabilities)
        require_bounded(claims_of(one))
    except TooLargeError as error:
        yield Doubt(file=RESULT, field="implementation.capabilities", text=str(error))


def list_of(level: CertificationLevel, contents: Contents) -> Listed:
    """What a package, or a shard of it, must have judged, drawn from seed and claims.

    Raises:
        UsageError: the claims cannot be read, are too large, or no case can be drawn from them.
    """
    result, shard = contents.result, contents.certificate.shard
    least, most = max(level.ranks), level.max_ranks
    ranks = result.run.max_ranks if least <= result.run.max_ranks <= most else most
    every = listed(level, result.implementation, max_ranks=ranks)
    if not shard:
        return every
    number, total = parse_shard(shard)
    return every.shard(number, total)


def _agreed(level: CertificationLevel, contents: Contents) -> Iterator[Doubt]:
    result = contents.result
    if result.standard_version != STANDARD_VERSION or result.implementation.kind != level.kind:
        return  # already reported; other rules judge other cases
    try:
        expected = list_of(level, contents)
    except UsageError as error:
        yield Doubt(file=RESULT, field="implementation.capabilities", text=str(error))
        return
    found = list(list_doubts(contents, expected))
    if result.run.corpus != expected.draws:
        text = f"{result.run.corpus} cases drawn, but level {level.title} demands {expected.draws} for these claims"
        found.append(Doubt(file=RESULT, field="run.corpus", text=text))
    columns = tuple(dict.fromkeys(cell.schedule for cell in expected.cells))
    if result.run.schedules != columns:
        text = f"{', '.join(result.run.schedules) or 'none'}; by its claims it is {', '.join(columns)}"
        found.append(Doubt(file=RESULT, field="run.schedules", text=text))
    if found:
        yield from _other_versions(contents)
    yield from found


def _other_versions(contents: Contents) -> Iterator[Doubt]:
    """Versions for which an honest package may have other cases: those of pipeconform and Hypothesis."""
    for machine in contents.environment[:1]:
        for name in ("pipeconform", "hypothesis"):
            there, here = machine.packages.get(name), metadata.version(name)
            if there != here:
                text = (
                    f"made with {name} {there}, but this is {here}, which may draw other cases and write other pages; "
                    f"verify with {there}"
                )
                yield Doubt(file=ENVIRONMENT, field="packages", text=text)


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
    elif certificate.reasons != reasons:
        yield Doubt(file=CERTIFICATE, field="reasons", text="not those that the result gives")


def _standard(contents: Contents) -> Iterator[Doubt]:
    found = contents.result.standard_version
    if found != STANDARD_VERSION:
        yield Doubt(
            file=RESULT,
            field="standard_version",
            text=f"{found}, out of date or too new: this version of pipeconform checks {STANDARD_VERSION}",
        )
