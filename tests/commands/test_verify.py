"""Packages on the command line: verified, merged and signed, or refused in a line with the right exit code."""

import msgspec
import pytest

from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from tests.certificate.conftest import half, sound, violated
from tests.facts import tells
from tests.report.conftest import make

__all__ = ["make"]

ENGINE = ("engine", "mine", "3 files", "111111111111", "torch 2.13.0", "9 files", "222222222222")


@pytest.fixture
def pack(tmp_path):
    """Writes contents as a package into the folder of the test."""

    def write(contents, name="mine.zip"):
        write_package(packed(contents), tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def package(make, pack):
    return pack(sound(make))


def test_a_sound_package_is_verified(typed, package):
    code, out, err = typed("verify", "mine.zip")
    engine, verdict = out.splitlines()

    assert (code, err) == (0, "")
    assert tells(engine, *ENGINE)
    assert verdict.startswith("VERIFIED (unsigned")
    assert tells(verdict, "'toy GPipe 1.0' deserves", "level forward", "standard 0.1")


def test_a_package_that_is_honest_about_a_failure_is_verified_and_not_granted(typed, make, pack):
    pack(violated(make, sound(make)))

    code, out, err = typed("verify", "mine.zip")
    engine, verdict, reason = out.splitlines()

    assert (code, err) == (1, "")
    assert tells(engine, *ENGINE)
    assert verdict.startswith("VERIFIED, NOT GRANTED (unsigned")
    assert tells(verdict, "'toy GPipe 1.0' does not deserve", "level forward", "standard 0.1")
    assert tells(reason, "FWD-1 failed", "GPipe")


def test_doubts_are_told_one_by_one(typed, make, pack):
    contents = sound(make)
    untried, *others = contents.canaries
    pack(msgspec.structs.replace(contents, canaries=tuple(others)))
    code, out, _ = typed("verify", "mine.zip")

    assert code == 1
    assert out.startswith(f"doubt: canaries.json: fault: {untried.fault} was not tried, ")
    assert tells(
        out.splitlines()[-1], "NOT VERIFIED", "1 doubt", "toy GPipe 1.0", "level forward", "standard 0.1"
    )


def test_an_incomplete_package_is_not_verified(typed, make, tmp_path):
    files = packed(sound(make))
    del files["result.json"]
    write_package(files, tmp_path / "mine.zip")
    code, out, _ = typed("verify", "mine.zip")

    assert code == 1
    assert tells(out.splitlines()[-1], "NOT VERIFIED", "incomplete")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("verify", "no.zip"), "cannot read no.zip: No such file or directory"),
        (("verify", "mine.zip", "--rerun", "3"), "--rerun and --impl belong together"),
        (("verify", "mine.zip", "--impl", "torch"), "--rerun and --impl belong together"),
        (("verify", "mine.zip", "--rerun", "3", "--impl", "torchy"), "cannot read --impl 'torchy'"),
        (("merge", "mine.zip", "--out", "x.zip"), "mine.zip: certificate.json: shard: this package is whole"),
        (("sign", "mine.zip", "--key", "no.pem"), "cannot read no.pem: No such file or directory"),
        (
            ("certify", "--impl", "reference", "--level", "gold"),
            "unknown level 'gold'; known: data-parallel, forward, full, robust",
        ),
        (("certify", "--impl", "torchy", "--level", "forward"), "cannot read --impl 'torchy'"),
        (
            ("certify", "--impl", "reference", "--level", "forward", "--shard", "3/2"),
            "--shard '3/2': expected I/N with 1 ≤ I ≤ N",
        ),
    ],
)
def test_wrong_input_is_answered_in_one_line(typed, package, arguments, expected):
    code, _, err = typed(*arguments)

    assert code == 2
    assert err.startswith(f"pipeconform: {expected}")
    assert err.count("\n") == 1


def test_shards_are_merged(typed, make, pack):
    for number in (1, 2):
        pack(half(make, number), f"{number}.zip")
    code, out, _ = typed("merge", "1.zip", "2.zip", "--out", "whole.zip")

    verdict, package = out.splitlines()
    assert code == 0
    assert verdict.startswith("VERIFIED (")
    assert tells(
        verdict, "merged here", "unsigned", "'toy GPipe 1.0' deserves", "level forward", "standard 0.1"
    )
    assert package == "package: whole.zip"
    assert typed("verify", "whole.zip")[0] == 0
    assert typed("verify", "1.zip")[0] == 1


def test_a_signature_that_was_not_asked_about_is_mentioned(typed, package, tmp_path):
    (tmp_path / "mine.zip.minisig").write_text("x\n")

    said = typed("verify", "mine.zip")[1]
    assert "VERIFIED (signature not checked: --public-key FILE checks mine.zip.minisig): 'toy" in said


def test_a_signature_that_is_missing_or_of_another_file_is_a_doubt(typed, package, tmp_path):
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    pem = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(pem)
    assert typed("sign", "mine.zip", "--key", "key.pem", "--public-key", "key.pub")[0] == 0
    code, out, _ = typed("verify", "mine.zip", "--public-key", "key.pub")
    name = (tmp_path / "key.pub").read_text().splitlines()[0].split()[-1]
    assert code == 0
    assert f"VERIFIED (signed with the key {name}): 'toy GPipe 1.0'" in out

    package.rename(tmp_path / "other.zip")
    code, out, _ = typed("verify", "other.zip", "--public-key", "key.pub")
    assert code == 1
    assert out.startswith("doubt: other.zip.minisig: cannot read other.zip.minisig")
