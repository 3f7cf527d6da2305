"""Whatever a file, a claim or the surroundings hold: one line on standard error, and exit code 2."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile

import msgspec
import pytest

from pipeconform.certificate.package import write_package
from pipeconform.certificate.packing import packed
from pipeconform.report.result import write_result
from tests.certificate.conftest import sound
from tests.report.conftest import make

__all__ = ["make"]

DEEP = b"[" * 100_000
DIGITS = b'{"format": ' + b"9" * 5000 + b"}"
NOT_TEXT = b'{"format": 5, "product_version": "\xff\xfe"}'


def refused(done) -> str:
    """The one line that a command that refuses prints."""
    code, out, err = done
    assert (code, out, err.count("\n")) == (2, "", 1), done
    assert err.startswith("pipeconform: ")
    assert "mistake of pipeconform" not in err
    return err


@pytest.mark.parametrize("data", [DEEP, DIGITS, NOT_TEXT, b"", b"null", b"\0"], ids=range(6))
@pytest.mark.parametrize(
    "command",
    [
        ("report", "file.json"),
        ("compare", "file.json", "file.json"),
        ("expect", "file.json"),
        ("replay", "TRN-1:GPipe:default:1f3a", "--impl", "reference", "--result", "file.json"),
        ("replay", "file.json", "--impl", "reference"),
        ("schedule", "verify", "file.json"),
    ],
    ids=" ".join,
)
def test_files_that_cannot_be_read(typed, tmp_path, command, data):
    (tmp_path / "file.json").write_bytes(data)
    assert "file.json" in refused(typed(*command))


@pytest.mark.parametrize("data", [DEEP, DIGITS, NOT_TEXT], ids=["deep", "digits", "not text"])
def test_packages_whose_members_cannot_be_read(typed, make, tmp_path, data):
    files = packed(sound(make))
    for name in ("certificate.json", "result.json", "canaries.json", "judged.json", "environment.json"):
        write_package({**files, name: data}, tmp_path / "mine.zip")
        code, out, err = typed("verify", "mine.zip")
        assert (code, err, out.count("\n")) == (1, "", 2), name
        assert f"doubt: {name}: " in out


@pytest.mark.parametrize("data", [DEEP, DIGITS, NOT_TEXT, "größe".encode("latin-1")], ids=range(4))
def test_manifests_that_cannot_be_read(typed, make, tmp_path, data):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("manifest.json", data)
    assert "manifest.json" in refused(typed("verify", "mine.zip"))
    assert "manifest.json" in refused(typed("merge", "mine.zip", "--out", "all.zip"))


def test_a_damaged_member_packed_by_lzma(typed, tmp_path):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("manifest.json", b"{}" * 1000)
    data = made.getvalue()
    (tmp_path / "mine.zip").write_bytes(data[:60] + bytes(8) + data[68:])
    assert "stored or deflated" in refused(typed("verify", "mine.zip"))


def test_a_signature_and_a_key_that_are_no_base64(typed, make, tmp_path):
    write_package(packed(sound(make)), tmp_path / "mine.zip")
    (tmp_path / "key.pub").write_text("untrusted comment: k\nschlüssel\n", "utf-8")
    (tmp_path / "mine.zip.minisig").write_text(
        "untrusted comment: s\nschlüssel\ntrusted comment: t\nschlüssel\n", "utf-8"
    )
    code, out, err = typed("verify", "mine.zip", "--public-key", "key.pub")
    assert (code, err) == (1, "")
    assert "damaged" in out


def test_a_violation_whose_case_does_not_suit_its_requirement(typed, make, tmp_path):
    """ERR-1 is about steps in which a mistake is made; there is none in this case."""
    violation = make.violation("ERR-1", "GPipe", id="ERR-1:GPipe:default:1f3a")
    write_result(make.result(make.cell("ERR-1", "GPipe", violation)), tmp_path / "result.json")
    line = refused(typed("replay", violation.id, "--impl", "reference", "--result", "result.json"))
    assert "ERR-1 does not apply to the case that is stored with it" in line


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("seed",), 10**40, "a number of 41 digits"),
        (("program", 0, "batch_size"), 10**18, "more than 10^18; at most 65,536"),
        (("world", "size"), 3000, "world.size is 3,000; at most 1,024"),
        (("program", 0, "num_microbatches"), 10**7, "into 10000000 microbatches"),
    ],
)
def test_cases_that_are_too_large(typed, make, tmp_path, path, value, words):
    case = json.loads(msgspec.json.encode(make.case()))
    place = case
    for one in path[:-1]:
        place = place[one]
    place[path[-1]] = value
    (tmp_path / "case.json").write_text(json.dumps(case))
    assert words in refused(typed("replay", "case.json", "--impl", "reference"))


def test_tables_that_are_too_large(typed):
    line = refused(typed("schedule", "verify", "--name", "1f1b", "-p", 5000, "-m", 10000))
    assert "p·v·m is 50,000,000, more than the limit of 5,000,000" in line


CLAIMS = {
    "stages_per_rank=tuple(range(1, 100_001))": "stages_per_rank has 100000 entries up to 100000",
    "stages_per_rank=(10**400,)": "stages_per_rank has 1 entries up to more than 10^18",
    "min_microbatches=10**7": "min_microbatches is 10000000; expected at most 256",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_that_would_cost_hours(typed, tmp_path, claim):
    (tmp_path / "mine.py").write_text(
        f"""
from dataclasses import replace
from pipeconform.reference_impl.adapter import ReferenceAdapter

class Large(ReferenceAdapter):
    def describe(self):
        told = super().describe()
        first, *others = told.capabilities.schedules
        claims = replace(told.capabilities, schedules=(replace(first, {claim}), *others))
        return replace(told, capabilities=claims)
"""
    )
    assert CLAIMS[claim] in refused(typed("list", "--impl", "mine.py:Large"))


def started(command: str, folder) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", command.format(pipeconform=f"'{sys.executable}' -m pipeconform")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    return done.returncode, done.stdout, done.stderr


def test_a_working_directory_that_was_deleted(tmp_path):
    done = started("mkdir gone && cd gone && rmdir ../gone && {pipeconform} list", tmp_path)
    assert "the working directory cannot be used: No such file" in refused(done)


def test_a_standard_output_that_is_closed(tmp_path):
    assert "standard output is closed" in refused(started("{pipeconform} list >&-", tmp_path))
