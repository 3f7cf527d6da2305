"""Verifying a package: its files, its signature, and a sample of its cases executed again."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from pipeconform.campaign.options import Options
from pipeconform.certificate.checks import Checked, check_package, list_of
from pipeconform.certificate.package import Doubt
from pipeconform.certificate.rerun import rerun as execute_again
from pipeconform.certificate.rerun import sample
from pipeconform.certificate.signature import SIGNATURE_SUFFIX, verify_signature
from pipeconform.errors import BadPackageError, UsageError
from pipeconform.execute.implementation import resolve
from pipeconform.spec import certification_level
from pipeconform.supported import require_supported_torch

__all__ = ["Verified", "verify_package"]


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The outcome of a verification."""

    checked: Checked
    executed: int = 0
    """The number of judgements that were made again."""
    sample_seed: int | None = None
    """The seed that chooses the same sample again; None if nothing was executed."""


def verify_package(
    package: Path,
    *,
    rerun: int = 0,
    options: Options | None = None,
    sample_seed: int | None = None,
    public_key: Path | None = None,
) -> Verified:
    """Check a package; with `rerun`, judge that many of the level's cases again on the implementation of `options`.

    With `public_key`, a signature that is missing or wrong is a doubt.

    Raises:
        BadPackageError: the package cannot be read at all.
        UsageError: `rerun` without `options` or the other way round, or the implementation cannot be used.
        HarnessError: the harness failed.
    """
    if bool(rerun) != (options is not None):
        raise UsageError(
            "cases are executed again on an implementation: give both their number and the implementation"
        )
    checked = check_package(package)
    if public_key is not None:
        checked = _signature_checked(checked, package, public_key)
    if not rerun or options is None or checked.contents is None:
        return Verified(checked=checked)
    try:
        level = certification_level(checked.contents.certificate.level)
        expected = list_of(level, checked.contents)
    except UsageError:
        return Verified(checked=checked)  # there is no list to choose from; a doubt says why
    require_supported_torch()
    resolve(options.implementation)
    seed = secrets.randbits(64) if sample_seed is None else sample_seed
    samples = sample(expected, checked.contents, rerun, rng=random.Random(seed))  # noqa: S311 - seeded by secrets
    doubts = execute_again(samples, checked.contents, options=options)
    checked = replace(checked, doubts=(*checked.doubts, *doubts))
    return Verified(checked=checked, executed=len(samples), sample_seed=seed)


def _signature_checked(checked: Checked, package: Path, public_key: Path) -> Checked:
    try:
        signed_by = verify_signature(package, blake2b=checked.blake2b, public_key=public_key)
        return replace(checked, signed_by=signed_by)
    except BadPackageError as error:
        doubt = Doubt(file=package.name + SIGNATURE_SUFFIX, text=str(error))
        return replace(checked, doubts=(*checked.doubts, doubt))
