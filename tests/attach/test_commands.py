"""``replay --attach`` and ``certify --attach``: the agents that a run has, they have too."""

from pathlib import Path

import pytest

from pipeconform.attach import session
from pipeconform.attach.session import attach_of
from pipeconform.certificate.checks import check_package
from pipeconform.report.result import read_result
from tests import tenths
from tests.attach.sites import GUARD, TOKEN, free_port
from tests.attach.test_session import CASES, REFERENCE

ROOT = str(Path(__file__).parents[2])
WRONG = "pipeconform.reference_impl.faults.scale:NotDivided"


@pytest.fixture
def attached(launched, monkeypatch, typed, warm_servers):
    """Run a command with so many agents; returns the code, what it printed, and the codes of the agents."""

    def run(*command, agents=2):
        monkeypatch.setenv("PIPECONFORM_TOKEN", TOKEN)
        where = f"127.0.0.1:{free_port()}"
        started = [
            launched("pipeconform.agent", "--controller", where, RANK=str(rank), PYTHONPATH=ROOT)
            for rank in range(agents)
        ]
        with warm_servers.used():
            code, out, err = typed(*command, "--attach", where)
        return code, out + err, [agent.wait(GUARD) for agent in started]

    return run


def test_a_stored_case_is_executed_on_agents(attached, tmp_path):
    case = tmp_path / "case.json"
    case.write_text(CASES[0])
    code, said, agents = attached("replay", case, "--impl", REFERENCE, "--requirement", "TRN-1")

    assert (code, agents) == (0, [0, 0]), said
    assert "FIXED: TRN-1 met" in said
    assert "for agents; needs 2, waits up to 120 s" in said


@pytest.mark.slow
def test_a_violation_of_an_attached_run_is_shown_again_on_agents(attached, tmp_path):
    selected = ["--schedules", "GPipe", "--requirements", "TRN-1", "--ranks", "2", "--examples", "3"]
    code, said, _ = attached("run", "--impl", WRONG, *selected, "--out", tmp_path)
    assert code == 1, said
    (cell,) = read_result(tmp_path / "result.json").cells
    code, said, agents = attached("replay", cell.violations[0].id, "--impl", WRONG, "--result", tmp_path)

    assert (code, agents) == (1, [0, 0]), said
    assert "REPRODUCED:" in said


@tenths.long
def test_a_wrapper_is_judged_on_agents(two_agents, monkeypatch, typed, warm_servers, tmp_path):
    site, controller = two_agents
    monkeypatch.setattr(session, "_kept", {attach_of(site.hub.address): controller})
    selected = ["--requirements", "DPW-1,DPW-35", "--ranks", "1-2", "--examples", "2", "--profile", "smoke"]
    with warm_servers.used():
        code, out, err = typed(
            *("run", "--impl", "reference-wrapper", *selected, "--out", tmp_path),
            *("--attach", site.hub.address),
        )
    result = read_result(tmp_path / "result.json")

    assert code == 0, out + err
    assert [cell.status for cell in result.cells] == ["passed", "passed"]
    assert all(name.startswith("attached ") for name in result.environment.device_names)
    assert result.environment.device_names


def test_a_replay_without_agents_says_what_is_missing(attached, tmp_path):
    case = tmp_path / "case.json"
    case.write_text(CASES[0])
    code, said, _ = attached("replay", case, "--impl", REFERENCE, "--agent-wait", "0.1", agents=0)

    assert code == 3
    assert "the run needs 2: start more, or lower --min-agents" in said


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["replay", "x.json", "--impl", REFERENCE, "--script", "x.py"], "--script executes nothing"),
        (["run", "--impl", REFERENCE, "--show-output"], "with --attach they print on other hosts"),
        (["run", "--impl", REFERENCE, "--coverage"], "--coverage needs ranks of this machine"),
        (
            ["certify", "--impl", REFERENCE, "--level", "forward", "-n", "2"],
            "--attach and -n do not go together",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(attached, command, reason):
    code, said, _ = attached(*command, agents=0)

    assert code == 2
    assert reason in said


@pytest.mark.parametrize(
    "command", [["replay", "x.json"], ["certify", "--level", "forward", "--out", "x.zip"]]
)
def test_options_about_agents_need_the_address_of_a_controller(typed, command):
    code, _, said = typed(*command, "--impl", REFERENCE, "--min-agents", "2")

    assert code == 2
    assert "needs --attach or --on, which was not given" in said


@pytest.mark.slow
def test_a_certificate_is_earned_on_agents_and_the_canaries_sing_there(attached, tmp_path):
    package = tmp_path / "certified.zip"
    asked = ("--impl", "reference", "--level", "forward", "--out", package)
    code, said, agents = attached("certify", *asked, "--min-agents", "2")  # CPUs take several ranks

    assert (code, agents) == (0, [0, 0]), said
    assert "GRANTED: " in said
    assert said.count("joined from") == 2  # once for everything
    assert all(canary.detected for canary in check_package(package).contents.canaries)
