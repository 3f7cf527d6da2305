"""``pipeconform verify``: check a certification package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pipeconform.campaign.options import Options
from pipeconform.commands.options import Where, device_options, impl_option
from pipeconform.commands.say import say_line
from pipeconform.errors import UsageError
from pipeconform.report.words import returned_unclaimed

if TYPE_CHECKING:
    from pipeconform.certificate.checks import Checked

__all__ = ["verdict_lines", "verify"]


@click.command(short_help="Check a certification package.")
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "--rerun",
    metavar="N",
    type=click.IntRange(min=1),
    help="Execute N of the level's cases, chosen at random after drawing them again; needs --impl.",
)
@click.option(
    "--sample-seed", metavar="N", type=int, help="Choose the same sample of cases again.  [default: random]"
)
@click.option(
    "--public-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Check the signature beside the package with this minisign key.",
)
@impl_option(required=False)
@device_options
def verify(
    package: Path,
    rerun: int | None,
    sample_seed: int | None,
    public_key: Path | None,
    impl: str | None,
    **where: Unpack[Where],
) -> int:
    """Check a certification package from its files, and decide again whether it deserves its level.

    The level's cases are drawn again from the claims and compared with the package. Every doubt is reported with its
    file and field. A package can be forged as a whole; only a signature, or --rerun on the implementation itself,
    shows that it was not.
    """
    if (rerun is None) != (impl is None):
        raise UsageError("--rerun and --impl belong together: cases are executed on the implementation")
    from pipeconform.certificate.engine import engine_text  # noqa: PLC0415 - imports torch
    from pipeconform.certificate.verification import verify_package  # noqa: PLC0415 - imports torch

    options = None if impl is None else Options(implementation=impl, **where)
    verified = verify_package(
        package, rerun=rerun or 0, options=options, sample_seed=sample_seed, public_key=public_key
    )
    checked = verified.checked
    for doubt in checked.doubts:
        say_line(f"doubt: {doubt}")
    if verified.sample_seed is not None:
        say_line(f"executed again: {verified.executed} judgements (--sample-seed {verified.sample_seed})")
    signature = package.with_name(package.name + ".minisig")
    if checked.contents is not None and not checked.doubts:
        say_line(f"engine: {engine_text(checked.contents.certificate.engine)}")
    for claim in () if checked.certificate is None else checked.certificate.weakening:
        say_line(f"claim that weakens the judgement: {claim}")
    if checked.signed_by:
        signed = f"signed with the key {checked.signed_by}"
    elif public_key is None and signature.exists():
        signed = f"signature not checked: --public-key FILE checks {signature.name}"
    else:
        signed = "unsigned: whoever made the package may have forged all of it"
    for line in verdict_lines(checked, signed):
        say_line(line)
    return int(not checked.granted)


def verdict_lines(checked: Checked, signed: str) -> list[str]:
    """The verdict, and why the level is not deserved; `signed` is added in parentheses."""
    certificate = checked.certificate
    if certificate is None:
        return ["NOT VERIFIED: the package is incomplete"]
    name = certificate.quoted
    level = f"level {certificate.level}, standard {certificate.standard_version}"
    if checked.granted:
        cells = () if checked.contents is None else checked.contents.result.cells
        unclaimed = (f"  it {one}" for one in returned_unclaimed(cells))
        return [f"VERIFIED ({signed}): {name} deserves {level}", *unclaimed]
    reasons = [f"  {reason}" for reason in checked.reasons]
    if checked.doubts:
        number = len(checked.doubts)
        return [f"NOT VERIFIED: {number} doubt{'s' if number > 1 else ''} about {name}, {level}", *reasons]
    return [f"VERIFIED, NOT GRANTED ({signed}): {name} does not deserve {level}", *reasons]
