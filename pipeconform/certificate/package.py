"""The package: one zip file, with the SHA-256 of everything in it.

The manifest finds what was damaged, exchanged or left out. It cannot stop somebody who writes another one:
that takes a signature (`pipeconform.certificate.signature`) or executing the cases again.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeconform.errors import BadPackageError
from pipeconform.writing import whole_file

__all__ = ["MANIFEST", "SUFFIX", "Doubt", "Package", "manifest_doubts", "read_package", "write_package"]

MANIFEST = "manifest.json"
SUFFIX = ".pipeconform.zip"
_FORMAT = 1
_MOST_BYTES = 1 << 30  # of all files together: a package is read as a whole
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip file can hold: equal contents, equal bytes
_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/+-]*")


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A reason not to believe a package, with the file and field it is about."""

    file: str
    field: str = ""
    text: str

    def __str__(self) -> str:
        where = f"{self.file}: {self.field}" if self.field else self.file
        return f"{where}: {self.text}"


class _Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: str
    bytes: int


class _Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    files: dict[str, _Listed]


@dataclass(frozen=True, kw_only=True)
class Package:
    """The contents of a package by name, the manifest apart."""

    path: Path
    files: Mapping[str, bytes]
    manifest: bytes


def write_package(files: Mapping[str, bytes], path: Path) -> None:
    """Write a package with its manifest, as a whole or not at all; equal contents give equal bytes.

    Raises:
        BadPackageError: the folder cannot be written; the message names it.
    """
    assert all(_NAME.fullmatch(name) for name in files), "names are portable"
    listed = {
        name: _Listed(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        for name, data in sorted(files.items())
    }
    manifest = msgspec.json.format(msgspec.json.encode(_Manifest(format=_FORMAT, files=listed)), indent=1)
    try:
        with whole_file(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in [(MANIFEST, manifest), *sorted(files.items())]:
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise BadPackageError(f"cannot write {path}: {error.strerror or error}") from error


def read_package(path: Path) -> Package:
    """Read a package as a whole.

    Raises:
        BadPackageError: it cannot be read, is no zip file, is truncated or damaged, holds unsafe or repeated
            names, is too large, or has no manifest of this format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = [entry.filename for entry in entries]
            twice = [name for name, number in Counter(names).items() if number > 1]
            if twice:
                raise BadPackageError(f"{path}: {twice[0]} is there twice")
            unsafe = [name for name in names if not _NAME.fullmatch(name)]
            if unsafe:
                raise BadPackageError(f"{path}: unsafe name {unsafe[0]!r}")
            if sum(entry.file_size for entry in entries) > _MOST_BYTES:
                raise BadPackageError(f"{path}: more than {_MOST_BYTES >> 20} MiB of contents")
            files = {name: archive.read(name) for name in names}
    except OSError as error:
        raise BadPackageError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise BadPackageError(f"{path}: truncated or damaged, or no package at all: {error}") from error
    manifest = files.pop(MANIFEST, None)
    if manifest is None:
        raise BadPackageError(f"{path}: not a certification package: it has no {MANIFEST}")
    _decoded(manifest, path)
    return Package(path=path, files=files, manifest=manifest)


def manifest_doubts(package: Package) -> tuple[Doubt, ...]:
    """Files that are not what the manifest says, that it does not list, or that are missing."""
    listed = _decoded(package.manifest, package.path).files
    doubts = []
    for name, entry in listed.items():
        data = package.files.get(name)
        if data is None:
            doubts.append(Doubt(file=name, text="listed in the manifest, but missing"))
        elif hashlib.sha256(data).hexdigest() != entry.sha256 or len(data) != entry.bytes:
            doubts.append(Doubt(file=name, field="sha256", text="the contents are not those of the manifest"))
    doubts += [
        Doubt(file=name, text="not listed in the manifest") for name in package.files if name not in listed
    ]
    return tuple(doubts)


def _decoded(manifest: bytes, path: Path) -> _Manifest:
    try:
        found = msgspec.json.decode(manifest, type=_Manifest)
    except msgspec.DecodeError as error:
        raise BadPackageError(f"{path}: {MANIFEST}: {error}") from error
    if found.format != _FORMAT:
        raise BadPackageError(
            f"{path}: {MANIFEST}: format {found.format}; this version of pipeconform reads {_FORMAT}"
        )
    return found
