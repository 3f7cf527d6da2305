"""What one run found is executed first in the next one, crashes and hangs too, and is reported if it shows again."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.campaign import pipeline_runner as module
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.earlier import Earlier, earlier_in
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.case.focus import Limits
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec import profile, requirement
from tests.campaign.campaigns import campaign
from tests.report.conftest import make

__all__ = ["make"]

CAPABILITIES = TorchPipelining().describe().capabilities
FAULTS = "pipeconform.reference_impl.faults"


def written(make, folder, *violations):
    result = make.result(make.cell("FWD-1", "GPipe", *violations))
    path = folder / "result.json"
    path.write_bytes(msgspec.json.encode(result))
    return path, result.implementation.name


def test_violations_are_found_by_their_cell(make, tmp_path):
    violation = make.violation("FWD-1", "GPipe")
    path, name = written(make, tmp_path, violation)

    assert earlier_in(path, implementation=name).by_cell == {("FWD-1", "GPipe", "default"): (violation,)}


def test_expected_violations_and_those_of_others_are_left_out(make, tmp_path):
    path, name = written(
        make, tmp_path, msgspec.structs.replace(make.violation("FWD-1", "GPipe"), expected="known")
    )

    assert earlier_in(path, implementation=name) == Earlier()
    assert earlier_in(path, implementation="another") == Earlier()


def test_what_cannot_be_read_holds_nothing(tmp_path):
    (tmp_path / "result.json").write_text("{")

    assert earlier_in(tmp_path / "result.json", implementation="x") == Earlier()
    assert earlier_in(tmp_path / "none.json", implementation="x") == Earlier()


@pytest.mark.parametrize(
    ("least", "most", "kept"), [(1, 2, True), (2, 2, True), (3, 4, False), (1, 1, False)]
)
def test_only_cases_within_the_limits_are_executed(make, least, most, kept):
    violation = msgspec.structs.replace(make.violation("FWD-1", "GPipe"), case=make.case(p=2))
    limits = Limits(capabilities=CAPABILITIES, min_ranks=least, max_ranks=most)
    target = PipelineTarget(name="torch", limits=limits, profile=profile("smoke"))

    assert target.allows(violation.case) is kept


def run(folder, fault, *others, seed=0):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pipeconform",
            "run",
            "--impl",
            f"{FAULTS}.{fault}",
            *("--profile", "smoke", "--schedules", "GPipe", "--ranks", "1-2", "--seed", str(seed)),
            *others,
        ],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ,
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads((folder / "pipeconform-results" / "result.json").read_text())["cells"]


def only(violations):
    (violation,) = violations
    return violation


@pytest.mark.slow
def test_a_crash_is_shown_again_by_its_own_case_whatever_the_seed(tmp_path):
    (first,) = run(tmp_path, "disasters:Exits", "--requirements", "FWD-1")
    (again,) = run(tmp_path, "disasters:Exits", "--requirements", "FWD-1", seed=7)
    was, found = only(first["violations"]), only(again["violations"])

    assert (first["status"], again["status"]) == ("crashed", "crashed")
    assert (found["digest"], found["minimal"], found["confirmed"]) == (was["digest"], was["minimal"], True)
    assert found["shrink_executions"] == 0
    assert again["judgements"] > first["judgements"]


@pytest.mark.slow
def test_workers_execute_what_the_run_before_found_and_what_is_mended_is_forgotten(tmp_path):
    (first,) = run(tmp_path, "disasters:Sleeps", "--requirements", "FWD-1")
    (again,) = run(tmp_path, "disasters:Sleeps", "--requirements", "FWD-1", "-n", "2", seed=7)
    (mended,) = run(tmp_path, "scale:NotDivided", "--requirements", "FWD-1", seed=7)
    (fresh,) = run(tmp_path, "scale:NotDivided", "--requirements", "FWD-1", seed=7)

    assert (first["status"], again["status"]) == ("hung", "hung")
    assert only(again["violations"])["digest"] == only(first["violations"])["digest"]
    assert (mended["status"], mended.get("violations", [])) == ("passed", [])
    assert mended["judgements"] == fresh["judgements"] + 1


# ------------------------------------------------------------------------------------- without processes

ROW = requirement("TRN-4")
KIND = "gradient value"


@pytest.fixture
def judged(make, monkeypatch):
    """Judge TRN-4, which every case of several ranks violates, after an earlier run that found `known`."""

    def judged(*, earlier=True, where=("TRN-4", "GPipe", "default"), max_ranks=4, **known):
        def judge(row, execution, executor, **_):
            wrong = row.id == "TRN-4" and execution.case.num_ranks > 1
            return (Outcome(Status.FAILED, Finding(kind=KIND, message=KIND)),) if wrong else ()

        monkeypatch.setattr(module, "judge", judge)
        monkeypatch.setattr(module, "localise", lambda *_: None)
        run = campaign(max_ranks=max_ranks)
        asked = campaign().ask(ROW, "GPipe", "default")
        cases = [case for case in asked.corpora[0].drawn() if asked.applies(case) and case.num_ranks == 3]
        violation = make.violation(
            "TRN-4", "GPipe", cases[0], **{"signature": KIND, "minimal": True, **known}
        )
        run.earlier = Earlier(by_cell={where: (violation,)} if earlier else {})
        return judge_cell(run, ROW, "GPipe"), violation

    return judged


@pytest.mark.parametrize("minimal", [True, False])
def test_what_an_earlier_run_confirmed_and_shows_again_is_reported_as_it_was(judged, minimal):
    cell, known = judged(minimal=minimal)

    (found,) = cell.violations
    assert (found.case, found.minimal, found.confirmed) == (known.case, minimal, True)
    assert found.shrink_executions == 0
    assert cell.judgements == judged(earlier=False)[0].judgements + 1


@pytest.mark.parametrize(
    "known",
    [
        {"earlier": False},
        {"where": ("TRN-4", "1F1B", "default")},
        {"where": ("TRN-4", "GPipe", "other")},
        {"max_ranks": 2},
    ],
    ids=["nothing", "another schedule", "another variant", "too many ranks"],
)
def test_anything_else_is_found_and_made_small_anew(judged, known):
    cell, violation = judged(**known)

    (found,) = cell.violations
    assert found.case != violation.case
    assert found.shrink_executions > 0


def test_what_was_not_confirmed_is_executed_twice_before_it_is_reported(judged):
    cell, known = judged(confirmed=False)

    (found,) = cell.violations
    assert (found.case, found.minimal, found.confirmed) == (known.case, False, True)
    assert cell.executions == judged()[0].executions + 1
