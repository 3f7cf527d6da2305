"""The package: one zip file, with the SHA-256 of everything in it.

The manifest reveals files that were damaged, exchanged or left out. It does not protect against a forger who writes
another manifest: only a signature (`pipeconform.certificate.signature`) or executing the cases again does.
"""

from __future__ import annotations

import hashlib
import io
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeconform.errors import BadPackageError
from pipeconform.reading import decoded_json, file_bytes, unreadable
from pipeconform.writing import whole_file

__all__ = ["MANIFEST", "SUFFIX", "Doubt", "Package", "manifest_doubts", "read_package", "write_package"]

MANIFEST = "manifest.json"
SUFFIX = ".pipeconform.zip"
_FORMAT = 1
_MOST_BYTES = 256 << 20  # of all files together; a package is read into memory
_WRITES = "; 'pipeconform certify' writes packages"
_FOREIGN = "there are bytes before, between or after its files that are no file's"
_MOST_FILES = 50_000
_MOST_DIRECTORY = 8 << 20  # bytes of the archive's directory, which Python reads before all else
_PIECE = 1 << 16  # bytes read at a time, and so the most that is unpacked beyond the declared size
_END = struct.Struct("<4s4H2LH")
"""The end of an archive without a comment: mark, disks and entries, the directory's size and place."""
_FILE = struct.Struct("<4s22x2H")
"""What stands before a file: mark, and the lengths of its name and of what follows the name."""
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip file: equal contents give equal bytes
_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/+-]*")


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A reason not to trust a package, with the file and field that it is about."""

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
    """The files of a package by name, and the manifest."""

    path: Path
    files: Mapping[str, bytes]
    manifest: bytes
    blake2b: bytes
    """The hash of the bytes that all this was read from; signatures are of it."""


def write_package(files: Mapping[str, bytes], path: Path) -> None:
    """Write a package with its manifest, completely or not at all; equal contents give equal bytes.

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
    """Read a package into memory, once: what is checked is what a signature is of.

    Raises:
        BadPackageError: it cannot be read, is not a zip file, is truncated or damaged, has links, unsafe or repeated
            names or bytes that belong to no file, is too large, or has no manifest of this format.
    """
    data = file_bytes(path, error=BadPackageError, most=_MOST_BYTES)
    try:
        directory = _directory_of(data, path)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_entries(entries, path)
            _check_places(entries, data[:directory], path)
            files = {entry.filename: _member(archive, entry, path) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, LookupError, ArithmeticError) as error:
        raise BadPackageError(
            f"{path}: truncated or damaged, or no package at all: {unreadable(error)}"
        ) from error
    except (struct.error, NotImplementedError, RuntimeError, MemoryError) as error:
        raise BadPackageError(f"{path}: damaged, or no package at all: {unreadable(error)}") from error
    manifest = files.pop(MANIFEST, None)
    if manifest is None:
        raise BadPackageError(f"{path}: not a certification package: it has no {MANIFEST}")
    _decoded(manifest, path)
    return Package(path=path, files=files, manifest=manifest, blake2b=hashlib.blake2b(data).digest())


def _directory_of(data: bytes, path: Path) -> int:
    """Where the list of files begins, according to the end of the archive; checks how much would be read for it."""
    if len(data) < _END.size:
        raise BadPackageError(
            f"{path}: truncated or damaged, or no package at all: {len(data)} bytes{_WRITES}"
        )
    mark, *_, length, place, comment = _END.unpack(data[-_END.size :])
    if mark != b"PK\5\6" or comment:
        raise BadPackageError(
            f"{path}: truncated or damaged, or no package at all: it does not end like one{_WRITES}"
        )
    if length > _MOST_DIRECTORY:
        raise BadPackageError(
            f"{path}: a directory of {length:,} bytes; at most {_MOST_DIRECTORY:,} are read"
        )
    if place + length + _END.size != len(data):
        raise BadPackageError(f"{path}: {_FOREIGN}")
    return int(place)


def _check_entries(entries: list[zipfile.ZipInfo], path: Path) -> None:
    if len(entries) > _MOST_FILES:
        raise BadPackageError(f"{path}: {len(entries):,} files; a package has at most {_MOST_FILES:,}")
    names = [entry.filename for entry in entries]
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise BadPackageError(f"{path}: {twice[0]} appears twice")
    unsafe = [name for name in names if not _NAME.fullmatch(name)]
    if unsafe:
        raise BadPackageError(f"{path}: unsafe name {unsafe[0]!r}")
    if sum(entry.file_size for entry in entries) > _MOST_BYTES:
        raise BadPackageError(f"{path}: more than {_MOST_BYTES >> 20} MiB of contents")
    for entry in entries:
        if entry.compress_type not in _PLAIN or entry.flag_bits & _ENCRYPTED:
            raise BadPackageError(
                f"{path}: {entry.filename} is packed by method {entry.compress_type} or encrypted; "
                f"a package's files are stored or deflated"
            )
        if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
            raise BadPackageError(
                f"{path}: {entry.filename} is a link, or another thing that is no plain file"
            )


def _check_places(entries: list[zipfile.ZipInfo], data: bytes, path: Path) -> None:
    """Check that the files that are listed, one after the other, are all that is there."""
    place = 0
    for entry in sorted(entries, key=lambda one: one.header_offset):
        mark, name, extra = _FILE.unpack_from(data, place)
        if mark != b"PK\3\4" or entry.header_offset != place:
            break
        place += _FILE.size + name + extra + entry.compress_size
    if place != len(data):
        raise BadPackageError(f"{path}: {_FOREIGN}")


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    """The contents of a file, read up to the declared size."""
    found = bytearray()
    with archive.open(entry) as file:
        while piece := file.read(_PIECE):
            found += piece
            if len(found) > entry.file_size:
                raise BadPackageError(f"{path}: {entry.filename} is larger than it says")
    if len(found) != entry.file_size:
        raise BadPackageError(f"{path}: {entry.filename} is smaller than it says")
    return bytes(found)


def manifest_doubts(package: Package) -> tuple[Doubt, ...]:
    """Doubts about files that differ from the manifest, are not listed in it, or are missing."""
    listed = _decoded(package.manifest, package.path).files
    doubts = []
    for name, entry in listed.items():
        data = package.files.get(name)
        if data is None:
            doubts.append(Doubt(file=name, text="listed in the manifest, but missing"))
        elif hashlib.sha256(data).hexdigest() != entry.sha256 or len(data) != entry.bytes:
            doubts.append(Doubt(file=name, field="sha256", text="the contents do not match the manifest"))
    doubts += [
        Doubt(file=name, text="not listed in the manifest") for name in package.files if name not in listed
    ]
    return tuple(doubts)


def _decoded(manifest: bytes, path: Path) -> _Manifest:
    found = decoded_json(
        manifest, _Manifest, source=f"{path}: {MANIFEST}", what="a manifest", error=BadPackageError
    )
    if found.format != _FORMAT:
        raise BadPackageError(
            f"{path}: {MANIFEST}: format {found.format}; this version of pipeconform reads {_FORMAT}"
        )
    return found
