"""``pipeconform sign``: sign a certification package."""

from __future__ import annotations

from pathlib import Path

import click

from pipeconform.certificate.package import read_package
from pipeconform.certificate.signature import public_key_of
from pipeconform.certificate.signature import sign as sign_file
from pipeconform.commands.say import say_line
from pipeconform.errors import BadPackageError

__all__ = ["sign"]


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
    help="Also write the public key, which others need to verify the signature, to this file.",
)
def sign(package: Path, key: Path, public_key: Path | None) -> None:
    """Sign a certification package; writes PACKAGE.minisig, which minisign can verify, too."""
    read_package(package)  # refuses a package that cannot be read
    say_line(f"signature: {sign_file(package, key=key, comment=package.name)}")
    if public_key is not None:
        try:
            public_key.write_text(public_key_of(key), "utf-8")
        except OSError as error:
            raise BadPackageError(f"cannot write {public_key}: {error.strerror or error}") from error
        say_line(f"public key: {public_key}")
