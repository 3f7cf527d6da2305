"""What a run gives to continuous integration: junit.xml, annotations on lines, the job's summary, only what failed."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pipeconform.commands.conclusion import conclude
from pipeconform.commands.engine import Ended
from pipeconform.commands.init import skeleton
from pipeconform.report.result import Expectations, read_result, write_result
from tests.report.conftest import Make

WRONG = ("losses[k] / len(losses) if self._mean else losses[k]", "losses[k]")
SMALL = ("--ranks", "2", "--examples", "2", "--profile", "smoke", "--requirements", "FWD-1,TRN-3")


@pytest.fixture
def result(tmp_path):
    make = Make()
    found = make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")))
    write_result(found, tmp_path / "out/result.json")
    return tmp_path / "out/result.json"


@pytest.fixture(autouse=True)
def outside_of_any_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
def test_a_run_on_github_annotates_the_adapter_and_writes_the_summary(typed, tmp_path, monkeypatch):
    """And what is run again with --lf is what was not met, until it is."""
    folder = tmp_path / "engine"
    folder.mkdir()
    wrong = skeleton(name="adapter.py").replace(*WRONG)
    (folder / "adapter.py").write_text(wrong, "utf-8")
    line = 1 + wrong.splitlines().index("class MyAdapter:")
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }.items():
        monkeypatch.setenv(name, value)
    run = ("run", "--impl", "engine/adapter.py:MyAdapter", *SMALL)

    code, out, _ = typed(*run)
    assert code == 1
    assert f"::error file=engine/adapter.py,line={line},title=TRN-3 Gradient scale%3A scale" in out
    assert (tmp_path / "summary.md").read_text().startswith("### pipeconform: toy GPipe 1.0 violates 1 of 2")
    (suite,) = ET.parse(tmp_path / "pipeconform-results/junit.xml").getroot()
    assert [(one.get("file"), one.get("line")) for one in suite.iter("testcase")] == [
        ("engine/adapter.py", str(line))
    ] * 2

    code, out, _ = typed(*run, "--lf", "--no-github")
    judged = [cell.requirement for cell in read_result(tmp_path / "pipeconform-results").cells]
    assert (code, judged) == (1, ["TRN-3"])
    assert "::error" not in out

    (folder / "adapter.py").write_text(skeleton(name="adapter.py"), "utf-8")
    assert typed(*run, "--last-failed")[0] == 0
    assert [cell.requirement for cell in read_result(tmp_path / "pipeconform-results").cells] == ["TRN-3"]


def test_annotations_are_printed_only_where_they_are_read(result, capsys):
    assert conclude(Ended(code=1), result, show="verdict") == 1
    assert "::" not in capsys.readouterr().out

    conclude(Ended(code=1), result, show="verdict", github=True)
    assert (
        capsys.readouterr().out.splitlines()[-2].startswith("::error title=FWD-1 Outputs%3A output value::")
    )


def test_json_on_standard_output_stays_json(result, capsys):
    conclude(Ended(code=1), result, show="json", github=True)
    shown = capsys.readouterr()

    assert json.loads(shown.out)["cells"]
    assert shown.err.startswith("::error ")


def test_a_summary_that_cannot_be_written_costs_no_verdict(result, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))

    assert conclude(Ended(code=1), result, show="verdict", github=True) == 1
    assert (
        f"no summary of the job: cannot write $GITHUB_STEP_SUMMARY, {tmp_path}: " in capsys.readouterr().err
    )


def test_a_junit_file_that_cannot_be_written_is_an_error_after_the_verdict(result, capsys):
    (result.parent / "junit.xml").mkdir()
    (result.parent / "junit.xml/in the way").touch()

    with pytest.raises(
        Exception, match=r"cannot write .*junit.xml: .*; the result file is complete"
    ) as raised:
        conclude(Ended(code=1), result, show="verdict")
    assert raised.value.exit_code == 3
    assert "violates 1 of 1 judged requirement" in capsys.readouterr().out


def test_the_junit_file_s_command_that_replays_finds_the_result(result, capsys):
    conclude(Ended(code=1), result, show="verdict")
    (failure,) = ET.parse(result.parent / "junit.xml").getroot().iter("failure")

    assert (
        f"replay: pipeconform replay FWD-1:GPipe:default:1f3a --impl torch --result {result}\n"
        in failure.text
    )


def test_a_run_that_only_its_expectations_fail_fails_in_the_junit_file_too(tmp_path, capsys):
    make = Make()
    problem = "e.toml:44: unexpected pass: FWD-1 under GPipe no longer shows failed 'output value', it passes"
    file = Expectations(file="e.toml", digest="", entries=1, problems=(problem,))
    found = make.changed(make.result(make.cell("FWD-1", "GPipe")), expectations=file)
    write_result(found, tmp_path / "out/result.json")

    assert (
        conclude(Ended(code=1), tmp_path / "out/result.json", show="verdict", expectations=Path("ci/e.toml"))
        == 1
    )
    (case,) = (one for one in ET.parse(tmp_path / "out/junit.xml").getroot().iter("testcase") if len(one))
    assert (case.get("name"), case.get("file"), case.get("line")) == ("e.toml:44 FWD-1", "ci/e.toml", "44")
    assert problem.endswith(case.find("failure").get("message"))


def test_what_is_known_by_the_user_s_file_is_named_in_the_junit_file(result, capsys, tmp_path):
    (tmp_path / "known.toml").write_text(
        'format = 1\n[[known]]\nid = "7"\ntitle = "lost"\nlink = "x.md"\nrequirements = ["FWD-1"]\nsignature = "."\n'
    )
    from pipeconform.report.causes import read_known

    conclude(Ended(code=1), result, show="verdict", known=read_known(tmp_path / "known.toml"))
    (failure,) = ET.parse(result.parent / "junit.xml").getroot().iter("failure")
    assert failure.get("message").endswith(", known as finding 7")
