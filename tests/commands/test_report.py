"""`pipeconform report`: from files to a page; whatever is wrong with a file is one clear line and exit code 2."""

import json
import re
import subprocess
import sys

import msgspec
import pytest

from pipeconform.commands.conclusion import conclude
from pipeconform.report.result import RESULT_FORMAT, Control, read_result, write_result
from tests.report.conftest import Make

HEAVY = ("torch", "hypothesis", "pytest")
KNOWN = """\
format = 1

[[known]]
id = "7"
title = "outputs are lost"
link = "https://example.org/7"
requirements = ["TRN-1"]
signature = "^output value$"
"""


@pytest.fixture
def make():
    return Make()


@pytest.fixture
def result(make):
    return make.result(make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe")))


def test_a_page_is_written_beside_its_result(typed, result, tmp_path):
    write_result(result, tmp_path / "found/result.json")

    assert typed("report", "found/result.json") == (0, "report: found/report.html\n", "")
    assert (tmp_path / "found/report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert {path.name for path in (tmp_path / "found").iterdir()} == {"result.json", "report.html"}


def test_a_folder_stands_for_the_result_in_it_and_out_may_be_a_new_folders_file(typed, result, tmp_path):
    write_result(result, tmp_path / "one/result.json")
    write_result(result, tmp_path / "two/result.json")

    assert typed("report", "one", "two", "--out", "pages/both.html")[:2] == (0, "report: pages/both.html\n")
    assert 'id="differences"' in (tmp_path / "pages/both.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("one", "two"), "comparison.html"), (("one", "two", "--by", "created"), "history.html")],
)
def test_a_page_of_several_results_leaves_the_page_of_the_first_alone(
    typed, result, tmp_path, arguments, name
):
    write_result(result, tmp_path / "one/result.json")
    write_result(result, tmp_path / "two/result.json")
    typed("report", "one")
    before = (tmp_path / "one/report.html").read_bytes()

    assert typed("report", *arguments) == (0, f"report: one/{name}\n", "")
    assert (tmp_path / "one/report.html").read_bytes() == before
    assert typed("report", *arguments, "--out", "two") == (0, f"report: two/{name}\n", "")


def test_a_history_says_in_which_release_a_requirement_was_mended(typed, make, tmp_path):
    given = {"1.9": make.violation("TRN-1", "GPipe", signature="<b>wrong</b>"), "1.10": None}
    for version, violation in given.items():
        cell = make.cell("TRN-1", "GPipe", *([violation] if violation else []))
        result = make.result(cell)
        named = msgspec.structs.replace(result.implementation, version=version)
        write_result(
            msgspec.structs.replace(result, implementation=named), tmp_path / version / "result.json"
        )

    assert typed("report", "1.10", "1.9", "--by", "version", "--out", "history.html")[0] == 0
    page = (tmp_path / "history.html").read_text("utf-8")
    assert page.index('scope="col">1.9<') < page.index('scope="col">1.10<')
    assert "mended in 1.10" in page
    assert "GPipe: failed, &lt;b&gt;wrong&lt;/b&gt;" in page


@pytest.fixture
def nightly(make, result, tmp_path):
    """A folder with results of two releases."""
    other = make.result(make.cell("TRN-1", "GPipe"))
    newer = msgspec.structs.replace(other.implementation, version="2.0")
    write_result(result, tmp_path / "nightly/monday/result.json")
    write_result(msgspec.structs.replace(other, implementation=newer), tmp_path / "nightly/tuesday.json")
    return tmp_path / "nightly"


PAGES = {"index.html", "history-toy-GPipe.html", "monday/report.html", "tuesday.json.html"}


def pages_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.html")}


def test_a_folder_of_results_becomes_an_index_with_a_page_for_each(typed, nightly):
    assert typed("report", "nightly") == (0, "index of 2 results: nightly/index.html\n", "")
    index = (nightly / "index.html").read_text("utf-8")

    assert pages_in(nightly) == PAGES
    assert set(re.findall(r'href="([^"#:]+)"', index)) == PAGES - {"index.html"}


def test_an_index_may_be_written_elsewhere(typed, nightly, tmp_path):
    assert typed("report", "nightly", "--out", "site")[:2] == (0, "index of 2 results: site/index.html\n")
    assert (pages_in(tmp_path / "site"), pages_in(nightly)) == (PAGES, set())

    (tmp_path / "file").write_text("")
    assert typed("report", "nightly", "--out", "file") == (
        2,
        "",
        "pipeconform: --out file is a file; an index needs a folder for its pages\n",
    )


def test_a_folder_of_results_has_a_history(typed, nightly, tmp_path):
    assert typed("report", "nightly", "--by", "version", "--out", "history.html")[0] == 0
    assert "mended in 2.0" in (tmp_path / "history.html").read_text("utf-8")


def test_a_history_of_a_folder_lies_in_the_folder(typed, nightly):
    assert typed("report", "nightly", "--by", "created") == (0, "report: nightly/history.html\n", "")


def test_a_damaged_result_is_named_and_the_others_have_their_pages(typed, nightly):
    (nightly / "result").mkdir()
    (nightly / "result/result.json").write_text("{")
    code, out, err = typed("report", "nightly")

    assert (code, out) == (0, "index of 2 results: nightly/index.html\n")
    assert err.startswith("pipeconform: not read: nightly/result/result.json: damaged, not JSON")
    assert "nightly/result/result.json: damaged" in (nightly / "index.html").read_text("utf-8")


def test_a_folder_without_results_is_one_line(typed, tmp_path):
    (tmp_path / "empty").mkdir()

    assert typed("report", "empty") == (
        2,
        "",
        "pipeconform: empty: there is no result below it; 'pipeconform run' writes result files\n",
    )


@pytest.mark.parametrize("version", range(1, RESULT_FORMAT))
def test_a_file_of_an_earlier_format_is_read(typed, result, tmp_path, version):
    """Files without controls have causes, too."""
    old = msgspec.to_builtins(result)
    old["format"] = version
    for cell in old["cells"]:
        for violation in cell["violations"]:
            del violation["large"]
            if version < 7:
                del violation["control"], violation["found_by"]
            if version == 1:
                del violation["timeline"], violation["first_wrong"]
    (tmp_path / "result.json").write_text(json.dumps(old))

    assert typed("report", "result.json")[0] == 0
    assert "1 cause in 1 requirement" in (tmp_path / "report.html").read_text("utf-8")


def test_findings_of_the_users_own_are_linked(typed, result, tmp_path):
    write_result(result, tmp_path / "result.json")
    (tmp_path / "known.toml").write_text(KNOWN)

    assert typed("report", "result.json", "--known", "known.toml")[0] == 0
    assert '<a href="https://example.org/7"' in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize("command", [("report", "result.json"), ("compare", "result.json", "result.json")])
def test_a_wrong_file_of_findings_is_one_line_that_says_where(typed, result, tmp_path, command):
    write_result(result, tmp_path / "result.json")
    (tmp_path / "known.toml").write_text(KNOWN.replace("TRN-1", "TRN-99"))

    code, out, err = typed(*command, "--known", "known.toml")

    assert (code, out) == (2, "")
    assert err.startswith("pipeconform: known.toml:7: unknown requirement 'TRN-99'; nearest: ")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": 2, "cells": [', "damaged, not JSON"),
        ("", "empty; expected a result file"),
        ("\0\0\0\0", "damaged, not JSON"),
        ("[1, 2]", "not a result file: Expected `object`, got `array`"),
        ('{"format": 999}', "result format 999"),
        ('{"format": "new"}', "result format 'new'"),
        ('{"tests": [], "summary": {}}', "result format None"),
        (json.dumps({"format": RESULT_FORMAT}), "not a result file"),
    ],
)
def test_what_is_no_result_is_one_line_that_names_the_file(typed, tmp_path, text, said):
    (tmp_path / "result.json").write_text(text)
    code, out, err = typed("report", "result.json")

    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("pipeconform: result.json: ")
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_an_unknown_field_is_named(typed, result, tmp_path):
    data = msgspec.to_builtins(result)
    data["cells"][0]["colour"] = "red"
    (tmp_path / "result.json").write_text(json.dumps(data))
    code, _, err = typed("report", "result.json")

    assert (code, "colour" in err, "$.cells[0]" in err) == (2, True, True)


def test_a_file_cut_off_anywhere_is_never_taken_for_a_result(typed, result, tmp_path):
    write_result(result, tmp_path / "whole.json")
    whole = (tmp_path / "whole.json").read_bytes()
    codes = set()
    for end in range(0, len(whole) - 1, 97):
        (tmp_path / "result.json").write_bytes(whole[:end])
        codes.add(typed("report", "result.json")[0])

    assert codes == {2}


def test_one_bad_file_among_good_ones_is_named(typed, result, tmp_path):
    write_result(result, tmp_path / "good.json")
    (tmp_path / "bad.json").write_text("{")
    code, _, err = typed("report", "good.json", "bad.json")

    assert (code, err.startswith("pipeconform: bad.json: damaged")) == (2, True)


def test_a_missing_file_is_named(typed):
    assert typed("report", "nowhere.json")[::2] == (
        2,
        "pipeconform: cannot read nowhere.json: No such file or directory; 'pipeconform run' writes result files\n",
    )


def test_no_file_is_a_usage_error(typed):
    code, _, err = typed("report")

    assert (code, "RESULT.json" in err) == (2, True)


def test_a_result_is_never_overwritten_by_its_page(typed, result, tmp_path):
    write_result(result, tmp_path / "result.json")
    code, _, err = typed("report", "result.json", "--out", "result.json")

    assert (code, "choose another name" in err) == (2, True)
    assert read_result(tmp_path / "result.json") == result


@pytest.mark.parametrize("out", ["/proc/report.html", "file/report.html"])
def test_where_nothing_can_be_written_the_place_is_named_and_nothing_is_lost(typed, result, tmp_path, out):
    write_result(result, tmp_path / "result.json")
    (tmp_path / "file").write_text("not a folder")
    code, stdout, err = typed("report", "result.json", "--out", out)

    assert (code, stdout) == (2, "")
    assert re.fullmatch(rf"pipeconform: cannot write {out}: .*; choose another --out\n", err)
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "file"}


def test_a_page_that_cannot_be_written_leaves_the_old_one_alone(typed, result, tmp_path):
    write_result(result, tmp_path / "result.json")
    (tmp_path / "report.html").mkdir()  # in the way of the page, not empty
    (tmp_path / "report.html/report.html").mkdir()

    code, _, err = typed("report", "result.json")

    assert (code, err.startswith("pipeconform: cannot write report.html/report.html: ")) == (2, True)
    assert [path.name for path in (tmp_path / "report.html").iterdir()] == ["report.html"]


def test_a_finished_run_loses_nothing_when_its_page_fails(result, tmp_path, capsys):
    file = tmp_path / "result.json"
    write_result(result, file)
    before = file.read_bytes()
    (tmp_path / "report.html").mkdir()  # in the way

    code = conclude(run_command_ended(), file, show="summary")
    shown = capsys.readouterr()

    assert code == 1
    assert "violates 1 of 1 judged requirement" in shown.out
    assert re.search(
        r"pipeconform: no .*report.html: cannot write .*; the result file is complete", shown.err
    )
    assert file.read_bytes() == before


def run_command_ended():
    from pipeconform.commands.engine import Ended

    return Ended(code=1)


@pytest.mark.parametrize(("expected", "code"), [("known.toml:3", 0), ("", 1)])
def test_what_an_expected_violation_blocks_does_not_fail_a_run(make, tmp_path, capsys, expected, code):
    control = Control(
        words="without the delay", digest="d", requirement="TRN-1", status="failed", signature="output value"
    )
    effect = make.violation("DPC-6", "GPipe", control=control)
    result = make.result(
        make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", expected=expected)),
        make.cell("DPC-6", "GPipe", effect, status="blocked"),
    )
    write_result(result, tmp_path / "result.json")

    assert conclude(run_command_ended(), tmp_path / "result.json", show="summary") == code
    assert "blocked: DPC-6 under GPipe (by TRN-1)" in capsys.readouterr().out


def test_a_run_leaves_its_page_beside_its_result(result, tmp_path, capsys):
    write_result(result, tmp_path / "result.json")

    assert conclude(run_command_ended(), tmp_path / "result.json", show="summary") == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert (tmp_path / "report.html").is_file()


def test_a_run_that_prints_json_leaves_its_page_and_prints_json_only(result, tmp_path, capsys):
    write_result(result, tmp_path / "result.json")
    conclude(run_command_ended(), tmp_path / "result.json", show="json")

    assert json.loads(capsys.readouterr().out)["format"] == RESULT_FORMAT
    assert (tmp_path / "report.html").is_file()


def test_a_page_is_made_without_torch_and_without_the_engine(result, tmp_path):
    write_result(result, tmp_path / "result.json")
    code = (
        "import sys, pipeconform.cli as cli\n"
        "try: cli.main(['report', 'result.json'])\n"
        f"except SystemExit: print('imported:', sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["report: report.html", "imported: []"]
