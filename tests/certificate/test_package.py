"""A package is believed byte for byte, or the file that is wrong is named."""

import zipfile

import msgspec
import pytest

from pipeconform.certificate.checks import check_package
from pipeconform.certificate.contents import adapter_name, contents_of
from pipeconform.certificate.package import MANIFEST, manifest_doubts, read_package, write_package
from pipeconform.certificate.packing import packed
from pipeconform.errors import BadPackageError
from tests.facts import tells


@pytest.fixture
def path(contents, tmp_path):
    target = tmp_path / "mine.pipeconform.zip"
    write_package(packed(contents), target)
    return target


def rewritten(path, change):
    """Another zip file with the same manifest, its other files changed by `change`."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    target = path.with_name("changed.zip")
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target


def test_what_was_written_is_read_and_verified(path, contents):
    package = read_package(path)

    assert manifest_doubts(package) == ()
    assert contents_of(package) == (contents, ())
    assert check_package(path).granted


def test_equal_contents_make_equal_packages(path, contents, tmp_path):
    write_package(packed(contents), tmp_path / "again.zip")

    assert (tmp_path / "again.zip").read_bytes() == path.read_bytes()


def test_another_file_name_changes_nothing(path, tmp_path):
    other = path.rename(tmp_path / "anything.zip")

    assert check_package(other).granted


def test_a_tampered_file_is_named(path):
    def change(files):
        files["result.json"] = files["result.json"].replace(b'"judgements": 6', b'"judgements": 7', 1)

    doubt, *_ = check_package(rewritten(path, change)).doubts
    assert (doubt.file, doubt.field) == ("result.json", "sha256")
    assert tells(doubt.text, "not match", "manifest")


def test_a_renamed_file_is_missing_under_its_name_and_unknown_under_the_other(path):
    def change(files):
        files["logs/other.txt"] = files.pop("logs/summary.txt")

    gone, unlisted, missing, unknown = map(str, check_package(rewritten(path, change)).doubts)
    assert tells(gone, "logs/summary.txt", "listed in the manifest", "missing")
    assert tells(unlisted, "logs/other.txt", "not listed in the manifest")
    assert tells(missing, "logs/summary.txt", "missing")
    assert tells(unknown, "logs/other.txt", "not a file of a certification package")


def test_a_smuggled_file_is_named(path):
    checked = check_package(rewritten(path, lambda files: files.update({"notes.txt": b"trust me"})))

    unlisted, unknown = map(str, checked.doubts)
    assert tells(unlisted, "notes.txt", "not listed in the manifest")
    assert tells(unknown, "notes.txt", "not a file of a certification package")
    assert not checked.granted


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_package_is_refused(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])

    with pytest.raises(BadPackageError, match="truncated or damaged, or no package at all"):
        read_package(path)


def test_a_flipped_bit_in_a_file_is_noticed(path):
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("result.json").header_offset
    data = bytearray(path.read_bytes())
    data[begin + 100] ^= 1
    path.write_bytes(data)

    with pytest.raises(BadPackageError, match="damaged"):
        read_package(path)


@pytest.mark.parametrize("name", ["result.json", "certificate.json", "canaries.json", "judged.json"])
def test_a_file_that_is_not_what_it_should_be_is_named_with_its_field(path, contents, name, tmp_path):
    files = packed(contents) | {name: b'{"format": "x"}'}
    write_package(files, tmp_path / "odd.zip")
    checked = check_package(tmp_path / "odd.zip")

    assert checked.certificate is None
    assert [doubt.file for doubt in checked.doubts] == [name]
    assert "not as the format demands" in checked.doubts[0].text


@pytest.mark.parametrize("name", ["result.json", "certificate.json", "environment.json"])
def test_a_file_that_is_not_there_is_named(contents, name, tmp_path):
    files = packed(contents)
    del files[name]
    write_package(files, tmp_path / "less.zip")

    doubt, *_ = check_package(tmp_path / "less.zip").doubts
    assert doubt.file == name
    assert tells(str(doubt), name, "missing")


def test_no_manifest_no_package(path):
    def change(files):
        del files[MANIFEST]

    with pytest.raises(BadPackageError, match=r"not a certification package: it has no manifest.json"):
        read_package(rewritten(path, change))


def test_a_newer_format_is_told(path):
    def change(files):
        manifest = msgspec.json.decode(files[MANIFEST]) | {"format": 2}
        files[MANIFEST] = msgspec.json.encode(manifest)

    with pytest.raises(BadPackageError, match="format 2; this version of pipeconform reads 1"):
        read_package(rewritten(path, change))


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/passwd", "a/../../b", "-x", "a\\b"])
def test_names_that_lead_elsewhere_are_refused(path, name):
    with pytest.raises(BadPackageError, match="unsafe name"):
        read_package(rewritten(path, lambda files: files.update({name: b""})))


def test_a_name_that_is_there_twice_is_refused(path):
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("result.json", b"{}")

    with pytest.raises(BadPackageError, match=r"result.json appears twice"):
        read_package(path)


def test_a_file_that_is_no_zip_file_is_refused(tmp_path):
    (tmp_path / "x.zip").write_text("hello")

    with pytest.raises(BadPackageError, match="no package at all"):
        read_package(tmp_path / "x.zip")


def test_files_that_cannot_be_read_or_written_are_named(contents, tmp_path):
    with pytest.raises(BadPackageError, match=r"cannot read .*nothing.zip: No such file"):
        read_package(tmp_path / "nothing.zip")
    with pytest.raises(BadPackageError, match=r"cannot write /proc/nowhere/x.zip"):
        write_package(packed(contents), tmp_path.__class__("/proc/nowhere/x.zip"))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("mine.py", "adapter/mine.py"),
        ("my adapter (2).py", "adapter/my_adapter_2_.py"),
        ("..py", "adapter/_.py"),
        ("Übung.v2.py", "adapter/_bung_v2.py"),
    ],
)
def test_an_adapter_may_have_any_file_name(name, kept, tmp_path):
    assert adapter_name(name) == kept
    write_package({adapter_name(name): b""}, tmp_path / "x.zip")
