"""Detached signatures in minisign's format: Ed25519 over a file's BLAKE2b hash. Needs the extra ``sign``.

``minisign -V`` verifies signatures made here, and the other way round. Private keys are PEM files, such as
``openssl genpkey -algorithm ed25519`` writes. The format is described at https://jedisct1.github.io/minisign/, under
"Signature format" and "Public key format".
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from pipeconform.errors import BadPackageError, UsageError
from pipeconform.reading import MOST_BYTES, file_bytes

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

__all__ = ["SIGNATURE_SUFFIX", "public_key_of", "sign", "verify_signature"]

SIGNATURE_SUFFIX = ".minisig"
_KEY, _SIGNATURE = b"Ed", b"ED"  # ED: a signature of the file's hash, not of the file
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "


def sign(path: Path, *, key: Path, comment: str) -> Path:
    """Sign a file and a comment with the private key in `key`; return the path of the signature, beside the file.

    Raises:
        BadPackageError: a file cannot be read or written, or is not a key.
        UsageError: the extra ``sign`` is not installed.
    """
    private = _private_key(key)
    signature = private.sign(_hashed(path))
    trusted = comment.replace("\n", " ")
    target = path.with_name(path.name + SIGNATURE_SUFFIX)
    text = (
        f"{_UNTRUSTED}signature of a pipeconform certification package\n"
        f"{_encoded(_SIGNATURE + _key_id(private) + signature)}\n"
        f"{_TRUSTED}{trusted}\n"
        f"{_encoded(private.sign(signature + trusted.encode()))}\n"
    )
    try:
        target.write_text(text, "utf-8")
    except OSError as error:
        raise BadPackageError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def public_key_of(key: Path) -> str:
    """The public key of a private key, as the contents of a minisign ``.pub`` file."""
    private = _private_key(key)
    identity = _key_id(private)
    data = _encoded(_KEY + identity + private.public_key().public_bytes_raw())
    return f"{_UNTRUSTED}minisign public key {_name(identity)}\n{data}\n"


def verify_signature(path: Path, *, blake2b: bytes, public_key: Path) -> str:
    """Check the signature beside a file, whose contents have this hash; return the key's id, as minisign writes it.

    The file itself is not read: it may be another one since its contents were checked.

    Raises:
        BadPackageError: there is no signature, or it is damaged, made with another key, or not of this file.
        UsageError: the extra ``sign`` is not installed.
    """
    _require_cryptography()
    beside = path.with_name(path.name + SIGNATURE_SUFFIX)
    keys = [line for line in _lines(public_key) if line and not line.startswith(_UNTRUSTED)]
    key = _decoded(keys[0], public_key) if keys else b""
    if key[:2] != _KEY or len(key) != 42:
        raise BadPackageError(f"{public_key}: not a minisign public key")
    lines = _lines(beside)
    if len(lines) < 4 or not lines[2].startswith(_TRUSTED):
        raise BadPackageError(f"{beside}: not a minisign signature")
    signature, whole = _decoded(lines[1], beside), _decoded(lines[3], beside)
    if signature[:2] != _SIGNATURE or len(signature) != 74 or len(whole) != 64:
        raise BadPackageError(f"{beside}: not a minisign signature of a hashed file")
    if signature[2:10] != key[2:10]:
        raise BadPackageError(f"{beside}: made with another key than {public_key}")
    public = Ed25519PublicKey.from_public_bytes(key[10:])
    try:
        public.verify(signature[10:], blake2b)
        public.verify(whole, signature[10:] + lines[2].removeprefix(_TRUSTED).encode())
    except InvalidSignature as error:
        raise BadPackageError(f"{beside}: not the signature of {path}") from error
    return _name(key[2:10])


def _require_cryptography() -> None:
    if not _INSTALLED:
        raise UsageError("signatures need the extra 'sign': pip install 'pipeconform[sign]'")


def _private_key(path: Path) -> Ed25519PrivateKey:
    _require_cryptography()
    try:
        found = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadPackageError(f"{path}: not a private key without password in PEM format") from error
    if not isinstance(found, Ed25519PrivateKey):
        raise BadPackageError(f"{path}: not an Ed25519 key; 'openssl genpkey -algorithm ed25519' makes one")
    return found


def _key_id(private: Ed25519PrivateKey) -> bytes:
    """A key id derived from the key, so that it need not be stored; minisign draws a random one."""
    return hashlib.sha256(private.public_key().public_bytes_raw()).digest()[:8]


def _name(identity: bytes) -> str:
    return identity[::-1].hex().upper()


def _hashed(path: Path) -> bytes:
    return hashlib.blake2b(_read(path)).digest()


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(line: str, path: Path) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except ValueError as error:  # binascii.Error is one; so is the error about letters that are not ASCII
        raise BadPackageError(f"{path}: damaged: {error}") from error


def _read(path: Path) -> bytes:
    return file_bytes(path, error=BadPackageError, most=2 * MOST_BYTES)


def _lines(path: Path) -> list[str]:
    try:
        return _read(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadPackageError(f"{path}: damaged: not text") from error
