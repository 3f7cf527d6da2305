"""The result file: what is written is read again, older files are, others are refused."""

import msgspec
import pytest
from jsonschema import Draft202012Validator

from pipeconform.errors import BadResultError
from pipeconform.report.result import RESULT_FORMAT, read_result, schema, write_result
from tests.report.test_localisation_text import FOUND

TIMELINE = (("0F0", "0F1", "0B1", "0B0"), ("1F0", "1B0", "1F1", "1B1"))


def test_a_timeline_and_its_first_wrong_computation_are_kept(make, tmp_path):
    violation = make.violation("SCH-2", "1F1B", timeline=TIMELINE, first_wrong=(0, 2))
    written = make.result(make.cell("SCH-2", "1F1B", violation))

    write_result(written, tmp_path / "result.json")

    assert read_result(tmp_path / "result.json") == written


def test_a_file_of_the_format_before_timelines_is_read(make, tmp_path):
    written = make.result(make.cell("SCH-2", "1F1B", make.violation("SCH-2", "1F1B")))
    data = msgspec.to_builtins(written) | {"format": 1}
    for field in ("timeline", "first_wrong"):
        del data["cells"][0]["violations"][0][field]
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(data))

    found = read_result(tmp_path / "result.json").cells[0].violations[0]

    assert found.timeline is None
    assert found.first_wrong is None


def test_where_an_error_begins_is_kept(make, tmp_path):
    violation = make.violation("TRN-1", "1F1B", localisation=FOUND)
    written = make.result(make.cell("TRN-1", "1F1B", violation))

    write_result(written, tmp_path / "result.json")

    assert read_result(tmp_path / "result.json") == written


def test_a_file_of_the_format_before_localisation_is_read(make, tmp_path):
    written = make.result(make.cell("TRN-1", "1F1B", make.violation("TRN-1", "1F1B")))
    data = msgspec.to_builtins(written) | {"format": 2}
    del data["cells"][0]["violations"][0]["localisation"]
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(data))

    assert read_result(tmp_path / "result.json").cells[0].violations[0].localisation is None


def test_a_file_of_a_later_format_is_refused(make, tmp_path):
    data = msgspec.to_builtins(make.result()) | {"format": RESULT_FORMAT + 1}
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(data))

    with pytest.raises(
        BadResultError, match=f"result format {RESULT_FORMAT + 1}; this version reads 1 to {RESULT_FORMAT}"
    ):
        read_result(tmp_path / "result.json")


def test_what_is_written_follows_the_published_schema(make, tmp_path):
    violation = make.violation("SCH-2", "1F1B", timeline=TIMELINE, first_wrong=(0, 2), localisation=FOUND)
    write_result(make.result(make.cell("SCH-2", "1F1B", violation)), tmp_path / "result.json")
    data = msgspec.json.decode((tmp_path / "result.json").read_bytes())
    checker = Draft202012Validator(schema())

    Draft202012Validator.check_schema(schema())
    assert list(checker.iter_errors(data)) == []
    data["cells"][0]["status"] = "fine"
    assert [error.json_path for error in checker.iter_errors(data)] == ["$.cells[0].status"]
