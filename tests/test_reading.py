"""Files of others are read within limits, and what is wrong with them is one line."""

from __future__ import annotations

import msgspec
import pytest

from pipeconform.errors import BadCaseError
from pipeconform.reading import decoded_json, file_bytes, file_text


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int = 0
    text: str = ""
    other: object = None


def read(data: bytes) -> Thing:
    return decoded_json(data, Thing, source="file", what="a thing", error=BadCaseError)


def test_what_is_well_formed_is_read():
    assert (
        read(b'{"number": 12345678901234567890, "text": "%s"}' % (b"1" * 99)).number == 12345678901234567890
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "file: empty; expected a thing"),
        (b'{"text": "\xff"}', "file: damaged, not JSON: "),
        (b'{"other": ' + b"[" * 100_000, "file: damaged, not JSON: nested more than 64 deep"),
        (b'{"other": ' + b"[" * 80 + b"]" * 80 + b"}", "file: nested more than 64 deep"),
        (b'{"number": ' + b"9" * 5000 + b"}", "file: "),
        (b'{"number": ' + b"9" * 40 + b"}", "file: a number of 40 digits or more; at most 32 are read"),
        (b'{"number": "one"}', "file: not a thing: Expected `int`, got `str`"),
        (b'{"numb\\u001b[2Ker": 1}', r"file: not a thing: Object contains unknown field `numb\x1b[2Ker`"),
    ],
)
def test_what_is_not_is_refused_in_one_line(data, words):
    with pytest.raises(BadCaseError) as caught:
        read(data)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_is_read_up_to_a_size(tmp_path):
    (tmp_path / "large").write_bytes(b"x" * 100)
    with pytest.raises(BadCaseError, match="more than 99 bytes; pipeconform never writes one that large"):
        file_bytes(tmp_path / "large", error=BadCaseError, most=99)
    assert len(file_bytes(tmp_path / "large", error=BadCaseError, most=100)) == 100


def test_what_cannot_be_opened_or_is_no_text_is_named(tmp_path):
    with pytest.raises(BadCaseError, match=r"cannot read .*: No such file"):
        file_bytes(tmp_path / "none", error=BadCaseError)
    with pytest.raises(BadCaseError, match=r"cannot read .*null"):
        file_bytes(tmp_path / "a\0b", error=BadCaseError)
    (tmp_path / "latin").write_bytes(b"gr\xf6sser")
    with pytest.raises(BadCaseError, match=r"not text in UTF-8 \(byte 2\)"):
        file_text(tmp_path / "latin", error=BadCaseError)


def test_files_of_the_same_kind_are_named_beside_one_that_is_missing(tmp_path):
    for name in ("case-one.json", "case-one.toml"):
        (tmp_path / name).write_text("")
    (tmp_path / "case-two.json").mkdir()

    with pytest.raises(BadCaseError) as caught:
        file_bytes(tmp_path / "case-onee.json", error=BadCaseError)
    assert str(caught.value).endswith("; nearest: case-one.json")


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(BadCaseError, match="a text: not text in UTF-8"):
        decoded_json('{"a": "\udcff"}', dict, source="a text", what="an object", error=BadCaseError)
