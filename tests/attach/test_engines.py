"""What engines are asked for, and how the processes that they start are followed."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeconform.attach import engines
from pipeconform.attach import supervised as module
from pipeconform.attach.engines import Ray, Slurm, Torchrun, engine_of
from pipeconform.attach.supervised import supervised
from pipeconform.errors import HarnessError, UsageError
from tests.attach.sites import free_port
from tests.facts import tells
from tests.waiting import until


def test_slurms_steps_go_to_the_nodes_in_turn_and_a_replacement_to_the_next_one():
    engine = Slurm(nodes=2)
    places = [
        next(part for part in command if part.startswith("--relative"))
        for command in engine.commands(4, controller="h:1")
    ]

    assert places == ["--relative=0", "--relative=1", "--relative=0", "--relative=1"]
    assert "--relative=0" in engine.again(1, attempt=1, controller="h:1")
    assert engine.again(3, attempt=0, controller="h:1")[-2:] == ("--device-index", "1")


def test_the_steps_of_another_process_go_on_where_those_of_the_first_end():
    first, second = Slurm(nodes=2), Slurm(nodes=2, first=3)
    places = [
        (next(part for part in command if part.startswith("--relative")), command[-1])
        for engine in (first, second)
        for command in engine.commands(3, controller="h:1")
    ]

    # three agents each on two nodes of three devices: no device has two
    assert places == [(f"--relative={n % 2}", str(n // 2)) for n in range(6)]


def test_torchrun_starts_all_agents_with_one_command():
    (command,) = Torchrun(first=6).commands(3, controller="h:1")

    assert "--nproc-per-node=3" in command
    agent = command[command.index("pipeconform.agent") - 1 :]
    assert agent[:4] == ("-m", "pipeconform.agent", "--controller", "h:1")
    assert agent[-3:] == ("--guest", "--first-device", "6")


def test_ray_keeps_all_agents_running_by_one_process_and_gives_each_a_gpu_where_ranks_need_one():
    (command,) = Ray().commands(3, controller="h:1")
    (with_gpus,) = Ray(gpu=True).commands(3, controller="h:1")

    assert command[1:] == ("-m", "pipeconform.attach.on_ray", "--agents", "3", "--controller", "h:1")
    assert with_gpus == (*command, "--gpu")


def test_without_ray_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match="pip install 'pipeconform\\[ray\\]'"):
        engine_of("ray")


@pytest.mark.parametrize(
    ("name", "environment", "said"),
    [
        ("slurm", {}, "start it with sbatch or salloc"),
        ("nonsense", {}, "expected local, slurm, ray, torchrun"),
    ],
)
def test_an_engine_that_is_not_there_is_refused(name, environment, said):
    with pytest.raises(UsageError, match=said):
        engine_of(name, environment=environment)


@dataclass
class Scripted:
    """Starts Python with a text."""

    first: str
    then: str = ""
    title: str = "a process"
    host: str = "127.0.0.1"
    restarts_itself: bool = False

    def commands(self, agents, *, controller):
        return tuple((sys.executable, "-c", self.first, str(number)) for number in range(agents))

    def again(self, number, *, attempt, controller):
        return (sys.executable, "-c", self.then, str(number), str(attempt))


STAYS = "import time; time.sleep(600)"


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(module, "_PAUSE", 0.1)
    monkeypatch.setattr(module, "_GOODBYE", 0.2)
    return []


def started(engine, lines, agents=1):
    return supervised(
        engine, agents=agents, controller="h:1", token="a secret of this test", say=lines.append
    )


def test_what_ends_is_started_again_with_the_token_and_ended_at_the_end(lines, tmp_path):
    note = tmp_path / "note"
    again = f"import json, os, sys, time; open({str(note)!r}, 'w').write(json.dumps([os.getpid(), " + (
        "os.environ['PIPECONFORM_TOKEN'], sys.argv[1:]])); time.sleep(600)"
    )
    with started(Scripted("raise SystemExit(7)", again), lines):
        until(lambda: note.exists() and note.read_text())
        pid, token, arguments = json.loads(note.read_text())

    assert (token, arguments) == ("a secret of this test", ["0", "1"])
    assert tells(lines[1], "process 0", "ended with code 7", "another is started")
    assert not (tmp_path.joinpath("/proc") / str(pid)).exists()


def test_an_agent_that_was_refused_is_not_started_again(lines):
    with started(Scripted("raise SystemExit(2)"), lines):
        until(lambda: len(lines) > 1)

    (_, line) = lines
    assert tells(line, "process 0", "ended with code 2", "not started again")


def test_processes_end_also_when_the_run_fails(lines):
    with pytest.raises(ZeroDivisionError), started(Scripted(STAYS), lines, agents=2):
        raise ZeroDivisionError

    (line,) = lines
    assert tells(line, "started 2 agents", "process")


def test_a_command_that_is_not_there_is_the_harness_failure(lines):
    class Missing(Scripted):
        def commands(self, agents, *, controller):
            return (("no-such-command",),)

    with pytest.raises(HarnessError, match="cannot start no-such-command"), started(Missing(""), lines):
        pass


@pytest.mark.slow
def test_a_run_on_torchrun_finds_what_a_local_one_finds(typed, tmp_path):
    wrong = "pipeconform.reference_impl.faults.scale:NotDivided"
    asked = (
        "--requirements",
        "TRN-3,FWD-1",
        "--schedules",
        "GPipe,1F1B",
        "--ranks",
        "1-2",
        "--examples",
        "2",
    )
    results = []
    for more in ((), ("--on", "torchrun"), ("--on", "torchrun", "-n", "2")):
        out = "-".join(("out", *more)).replace("--", "")
        code, said, err = typed("run", "--impl", wrong, "--profile", "smoke", *asked, *more, "--out", out)
        assert code == 1, said + err
        cells = json.loads((tmp_path / out / "result.json").read_text())["cells"]
        results.append([(c["requirement"], c["schedule"], c["status"], violated(c)) for c in cells])

    assert len(results[0]) == 4
    assert results[0] == results[1] == results[2]


def violated(cell):
    return [one["id"] for one in cell.get("violations", [])]


@pytest.mark.slow
def test_agents_of_torchrun_end_soon_after_their_controller_was_killed(tmp_path):
    """They are not started again a hundred times, each to wait for a controller that is gone."""
    command = [sys.executable, "-m", "pipeconform", "run", "--impl", "reference", "--on", "torchrun"]
    asked = ("--schedules", "GPipe", "--ranks", "1-2", "--examples", "500", "--out", "out")
    environment = {**os.environ, "PIPECONFORM_MARK": str(tmp_path)}
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen([*command, *asked], cwd=tmp_path, env=environment, stdout=said, stderr=said)
    try:
        until(lambda: b"agents: 2" in (tmp_path / "said").read_bytes(), limit=300)
    finally:
        run.kill()
        run.wait()

    until(lambda: not marked(tmp_path), limit=120)


def marked(folder):
    """The processes that have inherited the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"PIPECONFORM_MARK={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
    return found


def test_a_guest_ends_well_where_no_controller_listens(launched):
    codes = {}
    for more in ((), ("--guest",)):
        agent = launched(
            "pipeconform.agent", "--controller", f"127.0.0.1:{free_port()}", "--wait", "0.1", *more
        )
        said, _ = agent.communicate(timeout=60)
        codes[more] = agent.returncode
        assert "no controller at 127.0.0.1" in said

    assert codes == {(): 1, ("--guest",): 0}
