"""Detached signatures in minisign's format: Ed25519 over a file's BLAKE2b hash.

What is signed here verifies with ``minisign -V`` (and the other way round). Private keys are PEM files, such as
``openssl genpkey -algorithm ed25519`` writes. Needs the extra ``sign``.

Source of the format: https://jedisct1.github.io/minisign/, "Signature format" and "Public key format".
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pipeconform.errors import BadPackageError, UsageError
from pipeconform.reading import MOST_BYTES, file_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["SIGNATURE_SUFFIX", "public_key_of", "sign", "verify_signature"]

SIGNATURE_SUFFIX = ".minisig"
_KEY, _SIGNATURE = b"Ed", b"ED"  # ED: of the hash of the file, not of the file
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "


def sign(path: Path, *, key: Path, comment: str) -> Path:
    """Sign a file with the private key in `key` and return where the signature was written: beside it.

    `comment` is signed, too. Raises:
        BadPackageError: a file cannot be read or written, or the key is none.
        UsageError: the extra ``sign`` is not installed.
    """
    private = _private_key(key)
    public = private.public_key().public_bytes_raw()
    signature = private.sign(_hashed(path))
    trusted = comment.replace("\n", " ")
    whole = private.sign(signature + trusted.encode())
    lines = [
        f"{_UNTRUSTED}signature of a pipeconform certification package",
        base64.b64encode(_SIGNATURE + _key_id(public) + signature).decode(),
        f"{_TRUSTED}{trusted}",
        base64.b64encode(whole).decode(),
    ]
    target = path.with_name(path.name + SIGNATURE_SUFFIX)
    try:
        target.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise BadPackageError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def public_key_of(key: Path) -> str:
    """The public key that belongs to a private key, as the contents of a minisign ``.pub`` file."""
    public = _private_key(key).public_key().public_bytes_raw()
    text = base64.b64encode(_KEY + _key_id(public) + public).decode()
    return f"{_UNTRUSTED}minisign public key {_key_id(public)[::-1].hex().upper()}\n{text}\n"


def verify_signature(path: Path, *, public_key: Path) -> str:
    """Check the signature beside a file; returns the comment that was signed with it.

    Raises:
        BadPackageError: there is no signature, it is damaged, of another key, or not of this file.
        UsageError: the extra ``sign`` is not installed.
    """
    _require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    beside = path.with_name(path.name + SIGNATURE_SUFFIX)
    identity, public = _public_key(public_key)
    lines = _text(beside).splitlines()
    if len(lines) < 4 or not lines[2].startswith(_TRUSTED):
        raise BadPackageError(f"{beside}: not a minisign signature")
    signature, whole = _decoded(lines[1], beside), _decoded(lines[3], beside)
    if signature[:2] != _SIGNATURE or len(signature) != 74 or len(whole) != 64:
        raise BadPackageError(f"{beside}: not a minisign signature of a hashed file")
    if signature[2:10] != identity:
        raise BadPackageError(f"{beside}: made with another key than {public_key}")
    trusted = lines[2].removeprefix(_TRUSTED)
    checker = Ed25519PublicKey.from_public_bytes(public)
    try:
        checker.verify(signature[10:], _hashed(path))
        checker.verify(whole, signature[10:] + trusted.encode())
    except InvalidSignature as error:
        raise BadPackageError(f"{beside}: not the signature of {path}") from error
    return trusted


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise UsageError("signatures need the extra 'sign': pip install 'pipeconform[sign]'") from error


def _private_key(path: Path) -> Ed25519PrivateKey:
    _require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadPackageError(f"{path}: not a private key without password in PEM format") from error
    if not isinstance(found, Ed25519PrivateKey):
        raise BadPackageError(f"{path}: not an Ed25519 key; 'openssl genpkey -algorithm ed25519' makes one")
    return found


def _public_key(path: Path) -> tuple[bytes, bytes]:
    lines = [line for line in _text(path).splitlines() if line and not line.startswith(_UNTRUSTED)]
    data = _decoded(lines[0], path) if lines else b""
    if data[:2] != _KEY or len(data) != 42:
        raise BadPackageError(f"{path}: not a minisign public key")
    return data[2:10], data[10:]


def _key_id(public: bytes) -> bytes:
    """Minisign draws a random one; derived from the key, it need not be kept."""
    return hashlib.sha256(public).digest()[:8]


def _hashed(path: Path) -> bytes:
    return hashlib.blake2b(_read(path)).digest()


def _decoded(line: str, path: Path) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except ValueError as error:  # binascii's, and of letters that are not ASCII
        raise BadPackageError(f"{path}: damaged: {error}") from error


def _read(path: Path) -> bytes:
    return file_bytes(path, error=BadPackageError, most=2 * MOST_BYTES)


def _text(path: Path) -> str:
    try:
        return _read(path).decode()
    except UnicodeDecodeError as error:
        raise BadPackageError(f"{path}: damaged: not text") from error
