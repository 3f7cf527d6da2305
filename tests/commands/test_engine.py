"""The pytest command line behind a run, and what becomes of a session that does not begin."""

from pathlib import Path

import pytest

from pipeconform.campaign.options import Options
from pipeconform.commands.engine import Ended, arguments, drive, unjudged
from pipeconform.errors import HarnessError, UsageError
from pipeconform.report.result import Cell


@pytest.fixture
def command(tmp_path):
    def build(**others):
        return arguments(Options(implementation="torch", profile="smoke"), out=tmp_path, **others)

    return build


def test_options_carry_the_prefix_and_absent_ones_are_left_to_the_plugin(command, tmp_path):
    line = command()

    assert {
        "--pipeconform-impl=torch",
        "--pipeconform-profile=smoke",
        f"--pipeconform-out={tmp_path}",
    } <= set(line)
    assert not any("examples" in part for part in line)


def test_the_users_own_configuration_has_no_part(command):
    line = command()

    assert Path(line[line.index("-c") + 1]).name == "run.ini"
    assert Path(line[0]).is_dir()  # a path to anchor on: no conftest.py of the working directory is loaded


def test_short_options_become_pytests_own(command):
    line = command(keyword="GPipe", workers="2", exit_first=True, others=("--durations=3",))

    assert line[-8:] == ["-k", "GPipe", "-n", "2", "--dist", "loadgroup", "-x", "--durations=3"]


def test_no_workers_means_no_distribution(command):
    assert "-n" not in command(workers="0")


def test_arguments_pytest_cannot_read_are_refused_in_one_line(command):
    ended = drive([*command()[:5], "--no-such-option"])

    assert ended.code == pytest.ExitCode.USAGE_ERROR
    assert ended.usage == ["pytest refused its arguments: unrecognized arguments: --no-such-option"]


@pytest.mark.parametrize(
    ("ended", "error", "words"),
    [
        (Ended(gave_up="no agents"), HarnessError, "no agents"),
        (Ended(usage=["unknown schedule"]), UsageError, "unknown schedule"),
        (Ended(interrupted=True), KeyboardInterrupt, None),
        (Ended(failures=["a suite broke"]), HarnessError, "the suites failed: a suite broke"),
        (Ended(unwritten="no space left"), HarnessError, "no space left"),
    ],
)
def test_a_session_that_ended_early_is_not_taken_for_a_whole_one(ended, error, words):
    with pytest.raises(error, match=words):
        ended.require()


def test_a_session_that_came_to_its_end_raises_nothing():
    Ended(complete=True).require()


def test_the_first_cell_that_could_not_be_judged_is_named_with_its_reason():
    broken = Cell(requirement="FWD-1", schedule="GPipe", status="error", reason="no memory\nat all")
    good = Cell(requirement="FWD-2", schedule="GPipe", status="passed")

    assert unjudged([good]) == ""
    assert unjudged([good, broken]) == "FWD-1 under GPipe could not be judged: no memory"
    assert unjudged([broken, good, broken]).endswith("could not be judged (and 1 more cell): no memory")
