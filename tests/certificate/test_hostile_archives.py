"""Archives that are made to harm who reads them are refused before they do."""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import tracemalloc
import zipfile
import zlib

import pytest

from pipeconform.certificate.package import read_package, write_package
from pipeconform.errors import BadPackageError


def archive(tmp_path, *, method=zipfile.ZIP_DEFLATED, **files: bytes):
    path = tmp_path / "hostile.zip"
    with zipfile.ZipFile(path, "w", method) as made:
        for name, data in {"manifest.json": b"{}", **files}.items():
            made.writestr(name, data)
    return path


def test_what_unpacks_to_more_than_it_declares_is_read_no_further(tmp_path):
    """13 KB that declare 10 bytes took 12.6 GB once; here 100 KB stand for 100 MB."""
    path = archive(tmp_path, bomb=bytes(100 << 20))
    data = bytearray(path.read_bytes())
    for mark, crc_at in ((b"PK\x03\x04", 14), (b"PK\x01\x02", 16)):
        at = data.rindex(mark, 0, len(data))
        if mark == b"PK\x03\x04":
            at = data.index(mark, 4)
        struct.pack_into("<L", data, at + crc_at, zlib.crc32(bytes(10)))
        struct.pack_into("<L", data, at + crc_at + 8, 10)
    path.write_bytes(data)
    assert zipfile.ZipFile(path).getinfo("bomb").file_size == 10

    tracemalloc.start()
    try:
        with pytest.raises(BadPackageError):
            read_package(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 << 20


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_only_stored_and_deflated_files_are_read(tmp_path, method):
    with pytest.raises(BadPackageError, match=r"manifest.json is packed by method \d+ or encrypted"):
        read_package(archive(tmp_path, method=method))


def test_a_damaged_lzma_member_is_one_line(tmp_path):
    path = archive(tmp_path, method=zipfile.ZIP_LZMA, data=bytes(1000))
    path.write_bytes(path.read_bytes().replace(b"\x5d\x00\x00", b"\xff\xff\xff"))
    with pytest.raises(BadPackageError) as caught:
        read_package(path)
    assert "\n" not in str(caught.value)


def test_what_declares_more_than_a_package_has_is_not_unpacked(tmp_path):
    path = archive(tmp_path, data=b"x")
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, data.rindex(b"PK\x01\x02") + 24, 1 << 30)
    path.write_bytes(data)
    with pytest.raises(BadPackageError, match="more than 256 MiB of contents"):
        read_package(path)


def test_a_directory_is_not_read_that_is_larger_than_a_package_has(tmp_path):
    path = archive(tmp_path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, len(data) - 10, 1 << 30)
    path.write_bytes(data)
    with pytest.raises(
        BadPackageError, match="a directory of 1,073,741,824 bytes; at most 8,388,608 are read"
    ):
        read_package(path)


def test_what_does_not_end_as_an_archive_is_none(tmp_path):
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes() + b"comment")
    with pytest.raises(BadPackageError, match="it does not end like one"):
        read_package(path)


@pytest.mark.parametrize(
    "manifest", [b"\xff\xfe", b"[" * 100_000, b'{"format": ' + b"1" * 5000 + b"}", b"null"]
)
def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path, manifest):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as one:
        one.writestr("manifest.json", manifest)
    (tmp_path / "one.zip").write_bytes(made.getvalue())
    with pytest.raises(BadPackageError, match=r"one.zip: manifest.json: ") as caught:
        read_package(tmp_path / "one.zip")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("_MOST_BYTES", "more than .* bytes; pipeconform never writes one that large"),
        ("_MOST_FILES", "2 files; a package has at most 1"),
        ("_MOST_DIRECTORY", "a directory of .* bytes; at most"),
    ],
)
def test_what_is_one_larger_than_allowed_is_refused_and_what_is_as_large_is_not(
    tmp_path, monkeypatch, limit, words
):
    path = archive(tmp_path, data=b"x" * 100)
    whole = path.read_bytes()
    directory = struct.unpack("<L", whole[-10:-6])[0]
    size = {"_MOST_BYTES": len(whole), "_MOST_FILES": 2, "_MOST_DIRECTORY": directory}[limit]

    monkeypatch.setattr(f"pipeconform.certificate.package.{limit}", size)
    with pytest.raises(BadPackageError, match="not a manifest"):
        read_package(path)  # it has come to the manifest, which is empty
    monkeypatch.setattr(f"pipeconform.certificate.package.{limit}", size - 1)
    with pytest.raises(BadPackageError, match=words):
        read_package(path)


def test_all_files_together_unpack_to_as_much_as_is_allowed(tmp_path, monkeypatch):
    path = archive(tmp_path, first=b"x" * 1000, second=b"x" * 1000)
    assert len(path.read_bytes()) < 1000

    monkeypatch.setattr("pipeconform.certificate.package._MOST_BYTES", 2002)
    with pytest.raises(BadPackageError, match="not a manifest"):
        read_package(path)
    monkeypatch.setattr("pipeconform.certificate.package._MOST_BYTES", 2001)
    with pytest.raises(BadPackageError, match="MiB of contents"):
        read_package(path)


@pytest.mark.parametrize("size", [0, 21])
def test_what_is_shorter_than_the_end_of_an_archive_is_truncated(tmp_path, size):
    path = archive(tmp_path)
    path.write_bytes(path.read_bytes()[-22:][:size])
    with pytest.raises(BadPackageError, match=rf"no package at all: {size} bytes; 'pipeconform certify'"):
        read_package(path)


def test_an_encrypted_file_is_not_read(tmp_path):
    path = archive(tmp_path, data=b"x")
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(BadPackageError, match="data is packed by method 8 or encrypted"):
        read_package(path)


def _sound(tmp_path):
    write_package({"a.txt": b"one", "b.txt": b"two"}, tmp_path / "sound.zip")
    return (tmp_path / "sound.zip").read_bytes()


def test_bytes_that_belong_to_no_file_are_refused(tmp_path):
    whole = _sound(tmp_path)
    end = len(whole) - 22
    (place,) = struct.unpack_from("<L", whole, end + 16)
    hidden = io.BytesIO()
    with zipfile.ZipFile(hidden, "w") as one:
        one.writestr("c.txt", b"three")
    local = hidden.getvalue()[: hidden.getvalue().index(b"PK\1\2")]
    moved = bytearray(whole[:place] + local + whole[place:])
    struct.pack_into("<L", moved, len(moved) - 6, place + len(local))

    read_package(tmp_path / "sound.zip")
    for name, data in {"before": b"#!/bin/sh\n" + whole, "between": bytes(moved)}.items():
        path = tmp_path / f"{name}.zip"
        path.write_bytes(data)
        assert zipfile.ZipFile(path).namelist() == ["manifest.json", "a.txt", "b.txt"]
        with pytest.raises(
            BadPackageError, match="bytes before, between or after its files that are no file's"
        ):
            read_package(path)


def test_a_link_is_no_file_of_a_package(tmp_path):
    path = tmp_path / "links.zip"
    with zipfile.ZipFile(path, "w") as one:
        entry = zipfile.ZipInfo("logs/summary.txt")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        one.writestr(entry, "/etc/hostname")

    with pytest.raises(
        BadPackageError, match=r"logs/summary.txt is a link, or another thing that is no plain"
    ):
        read_package(path)


def test_a_signature_is_of_what_was_checked_even_if_the_file_is_another_one_by_then(tmp_path):
    whole = _sound(tmp_path)
    package = read_package(tmp_path / "sound.zip")
    (tmp_path / "sound.zip").write_bytes(b"another")

    assert package.blake2b == hashlib.blake2b(whole).digest()
