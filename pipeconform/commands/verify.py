"""``pipeconform verify``, ``merge`` and ``sign``: what is done with certification packages."""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeconform.commands.options import device_options, impl_option
from pipeconform.commands.say import say_line
from pipeconform.errors import BadPackageError, UsageError

if TYPE_CHECKING:
    from pipeconform.certificate.checks import Checked
    from pipeconform.certificate.package import Doubt

__all__ = ["merge", "sign", "verify", "verify_package"]


@click.command(short_help="Check a certification package.")
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "--rerun",
    metavar="N",
    type=click.IntRange(min=1),
    help="Execute N of the level's cases, drawn again and chosen at random; needs --impl.",
)
@click.option(
    "--sample-seed", metavar="N", type=int, help="Draw the same sample again.  [default: another each time]"
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
    **device: Any,
) -> int:
    """Check a certification package from its files, and decide anew whether its level is deserved.

    The level's cases are drawn again from the claims and compared with the package. Every doubt is named with
    file and field. Files can be forged as a whole: only a signature, or --rerun on the implementation itself,
    tells.
    """
    if (rerun is None) != (impl is None):
        raise UsageError("--rerun and --impl belong together: cases are executed on the implementation")
    checked, sampled = verify_package(
        package, rerun=rerun or 0, impl=impl, sample_seed=sample_seed, public_key=public_key, **device
    )
    for doubt in checked.doubts:
        say_line(f"doubt: {doubt}")
    if sampled is not None:
        number, seed = sampled
        say_line(f"executed again: {number} judgements (--sample-seed {seed})")
    signature = package.with_name(package.name + ".minisig")
    if checked.contents is not None and not checked.doubts:
        from pipeconform.certificate.engine import engine_text

        say_line(f"engine: {engine_text(checked.contents.certificate.engine)}")
    for claim in () if checked.certificate is None else checked.certificate.weakening:
        say_line(f"claimed, with which less is seen: {claim}")
    if checked.signed_by:
        signed = f"signed with the key {checked.signed_by}"
    elif public_key is None and signature.exists():
        signed = f"signature not checked: --public-key FILE checks {signature.name}"
    else:
        signed = "unsigned: whoever made the package may have forged all of it"
    for line in _verdict(checked, signed):
        say_line(line)
    return int(not checked.granted)


def verify_package(
    package: Path,
    *,
    rerun: int = 0,
    impl: str | None = None,
    sample_seed: int | None = None,
    public_key: Path | None = None,
    device: str = "cpu",
    backend: str = "auto",
    ranks_per_device: int = 1,
) -> tuple[Checked, tuple[int, int] | None]:
    """Check a package; with `rerun`, judge that many of the level's cases again on `impl`.

    Returns what was found, and how many judgements were made again with which seed of the sample. With
    `public_key`, a signature that is missing or wrong is a doubt.

    Raises:
        BadPackageError: the package cannot be read at all.
        UsageError: the implementation cannot be used.
        HarnessError: the harness failed.
    """
    from dataclasses import replace

    from pipeconform.certificate.checks import check_package

    checked = check_package(package)
    if public_key is not None:
        from pipeconform.certificate.signature import name_of_key

        doubts = _signature_doubts(package, public_key)
        signed_by = "" if doubts else name_of_key(public_key)
        checked = replace(checked, doubts=(*checked.doubts, *doubts), signed_by=signed_by)
    if not rerun or impl is None or checked.contents is None:
        return checked, None
    from pipeconform.certificate.checks import list_of
    from pipeconform.spec import certification_level

    try:
        level = certification_level(checked.contents.certificate.level)
        expected = list_of(level, checked.contents)
    except UsageError:
        return checked, None  # a doubt says why: there is no list to choose from
    from pipeconform.campaign.options import Options
    from pipeconform.certificate.rerun import rerun as execute_again
    from pipeconform.certificate.rerun import sample
    from pipeconform.execute.implementation import resolve
    from pipeconform.supported import require_supported_torch

    require_supported_torch()
    resolve(impl)
    seed = secrets.randbits(64) if sample_seed is None else sample_seed
    samples = sample(expected, checked.contents, rerun, rng=random.Random(seed))  # noqa: S311 - seeded by secrets
    options = Options(implementation=impl, device=device, backend=backend, ranks_per_device=ranks_per_device)
    doubts = execute_again(samples, checked.contents, options=options)
    return replace(checked, doubts=(*checked.doubts, *doubts)), (len(samples), seed)


def _signature_doubts(package: Path, public_key: Path) -> tuple[Doubt, ...]:
    from pipeconform.certificate.package import Doubt
    from pipeconform.certificate.signature import SIGNATURE_SUFFIX, verify_signature

    try:
        verify_signature(package, public_key=public_key)
    except BadPackageError as error:
        return (Doubt(file=package.name + SIGNATURE_SUFFIX, text=str(error)),)
    return ()


def _verdict(checked: Checked, signed: str) -> list[str]:
    certificate = checked.certificate
    if certificate is None:
        return ["NOT VERIFIED: the package is incomplete"]
    name = f"{certificate.implementation} {certificate.version}"
    level = f"level {certificate.level}, standard {certificate.standard_version}"
    if checked.granted:
        from pipeconform.report.words import returned_unclaimed

        cells = () if checked.contents is None else checked.contents.result.cells
        told = (f"  it {one}" for one in returned_unclaimed(cells))
        return [f"VERIFIED ({signed}): {name} deserves {level}", *told]
    reasons = [f"  {reason}" for reason in checked.reasons]
    if checked.doubts:
        number = len(checked.doubts)
        return [f"NOT VERIFIED: {number} doubt{'s' if number > 1 else ''} about {name}, {level}", *reasons]
    return [f"VERIFIED, NOT GRANTED ({signed}): {name} does not deserve {level}", *reasons]


@click.command(short_help="Put the shards of a certification together.")
@click.argument("shards", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The package.")
@click.option(
    "--allow-different-environments", is_flag=True, help="Merge although the shards ran in different ones."
)
def merge(shards: tuple[Path, ...], out: Path, allow_different_environments: bool) -> int:
    """Put the shards of one certification together and decide about the level."""
    from pipeconform.certificate.checks import check_contents
    from pipeconform.certificate.contents import packed
    from pipeconform.certificate.package import write_package
    from pipeconform.certificate.shards import merge as merge_shards

    contents = merge_shards(shards, allow_different_environments=allow_different_environments)
    write_package(packed(contents), out)
    checked = check_contents(contents)
    for doubt in checked.doubts:
        say_line(f"doubt: {doubt}")
    for line in _verdict(checked, "merged here, unsigned"):
        say_line(line)
    say_line(f"package: {out}")
    return int(not checked.granted)


@click.command(short_help="Sign a certification package.")
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "--key",
    metavar="KEY.pem",
    type=click.Path(path_type=Path),
    required=True,
    help="An Ed25519 private key: openssl genpkey -algorithm ed25519 -out KEY.pem",
)
@click.option(
    "--public-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the public key here, for those who verify.",
)
def sign(package: Path, key: Path, public_key: Path | None) -> None:
    """Sign a certification package; writes PACKAGE.minisig, which minisign verifies, too."""
    from pipeconform.certificate.package import read_package
    from pipeconform.certificate.signature import public_key_of
    from pipeconform.certificate.signature import sign as sign_file

    read_package(package)  # what cannot be read is not signed
    say_line(f"signature: {sign_file(package, key=key, comment=package.name)}")
    if public_key is not None:
        try:
            public_key.write_text(public_key_of(key), "utf-8")
        except OSError as error:
            raise BadPackageError(f"cannot write {public_key}: {error.strerror or error}") from error
        say_line(f"public key: {public_key}")
