"""The command line as a user types it: what is wrong is said in one line, at once, with the right exit code."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pipeconform import cli
from pipeconform.commands.checks import Check
from pipeconform.supported import ALLOW_UNTESTED
from tests.facts import tells

HEAVY = ("torch", "hypothesis", "pytest", "rich", "msgspec", "numpy")


def test_help_imports_nothing_heavy():
    code = (
        "import sys, pipeconform.cli as cli\n"
        "try: cli.main(['--help'])\n"
        f"except SystemExit: print('imported:', sorted(set(sys.modules) & {set(HEAVY)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "imported: []"


LIGHT = (
    "list",
    "list --levels",
    "list --profiles",
    "list --changes",
    "show smoke",
    "show forward",
    "show TRN-4",
    "show DPW-1",
    "schedule verify --name GPipe -p 2 -m 4",
    "schedule draw --name GPipe -p 2 -m 4",
    "schedule list",
    *(f"{name} --help" for name in cli._COMMANDS),
)


def test_light_commands_import_neither_torch_nor_hypothesis():
    # a process of its own for each, as a fork of one that has imported no command yet
    code = (
        "import os, sys, pipeconform.cli as cli\n"
        f"for command in {LIGHT!r}:\n"
        "    if os.fork():\n"
        "        os.wait()\n"
        "        continue\n"
        "    try: cli.main(command.split())\n"
        "    except SystemExit as end:\n"
        "        print('ends', command, end.code, sorted({'torch', 'hypothesis'} & set(sys.modules)), flush=True)\n"
        "    os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    ends = [line for line in done.stdout.splitlines() if line.startswith("ends ")]
    assert ends == [f"ends {command} 0 []" for command in LIGHT]


def test_every_command_says_in_its_own_help_what_the_list_of_commands_says():
    context = click.Context(cli.pipeconform)
    own = {name: cli.pipeconform.get_command(context, name).short_help for name in cli._COMMANDS}

    assert own == dict(cli._COMMANDS)


def test_help_names_every_command_and_every_exit_code(typed):
    code, out, _ = typed("--help")

    assert code == 0
    assert [
        word
        for word in (
            "run",
            "status",
            "replay",
            "list",
            "show",
            "schedule",
            "compare",
            "expect",
            "certify",
            "verify",
            "merge",
            "sign",
            "doctor",
            "selftest",
            "init",
        )
        if f"\n  {word} " not in out
    ] == []
    assert "    130  interrupted" in out


def test_no_command_shows_the_help(typed):
    code, _, err = typed()

    assert (code, err.splitlines()[0]) == (2, "Usage: pipeconform [OPTIONS] COMMAND [ARGS]...")


def test_the_version_is_told(typed):
    assert typed("--version")[:2] == (0, "pipeconform, version 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["frob"], "unknown pipeconform command 'frob'; 'pipeconform --help' prints all"),
        (["run"], "Missing option '--impl'; see 'pipeconform run --help'"),
        (["run", "--impl", "torch", "--profile", "smok"], "unknown profile 'smok'; nearest: smoke"),
        (
            ["run", "--impl", "torch", "--requirements", ""],
            "--requirements '' names none; leave the option out to judge all",
        ),
        (
            ["run", "--impl", "torch", "--schedules", ", "],
            "--schedules ', ' names none; leave the option out to judge all",
        ),
        (
            ["run", "--impl", "torch", "--requirements", "TRN,FW-1"],
            "unknown requirement or chapter 'FW-1'; nearest: FWD-1",
        ),
        (["run", "--impl", "torch", "--ranks", "4-2"], "--ranks '4-2': expected N or A-B with 1 ≤ A ≤ B ≤ 8"),
        (
            ["run", "--impl", "torch", "--examples", "0"],
            "Invalid value for '--examples': 0 is not in the range 1<=x<=100000",
        ),
        (["selftest", "--requirements", "FW-1"], "unknown requirement or chapter 'FW-1'; nearest: FWD-1"),
        (["run", "--impl", "torch", "-n", "two"], "-n two: expected a number of processes or auto"),
        (
            ["run", "torch", "--impl", "torch"],
            "unexpected argument 'torch': name the implementation with --impl",
        ),
        (
            ["run", "--impl", "torchy"],
            "cannot read --impl 'torchy' (nearest: torch, torch-ddp, torch-fsdp): expected a built-in name (torch, ",
        ),
        (["run", "--impl", "mine.py:X"], "--impl 'mine.py:X': there is no file mine.py"),
        (["run", "--impl", "torch", "--out", "/proc/nowhere"], "cannot write results to /proc/nowhere: "),
        (["show", "fw1"], "unknown requirement, chapter, level, profile or feature 'fw1'; nearest: FWD-1"),
        (["list", "--levels", "--changes"], "list shows one thing at a time: --schedules, --levels,"),
        (["list", "--levels", "--impl", "torch"], "--impl says nothing about levels, profiles or changes"),
        (["list", "--schedules"], "list --schedules needs --impl REF"),
        (["replay", "no.json", "--impl", "torch"], "cannot read no.json: No such file or directory"),
        (
            ["replay", "FWD-1:GPipe:default:1f3a", "--impl", "torch"],
            "cannot read pipeconform-results/result.json: No such file or directory",
        ),
        (["init", "mine.txt"], "an adapter is a Python file: expected a name such as mine.py"),
        (["init", "/proc/nowhere/mine.py"], "cannot write /proc/nowhere/mine.py: "),
    ],
)
def test_wrong_input_is_answered_in_one_line(typed, arguments, expected):
    code, _, err = typed(*arguments)

    assert code == 2
    assert err.startswith(f"pipeconform: {expected}")
    assert err.count("\n") == 1


def test_two_runs_do_not_share_a_folder(typed, tmp_path):
    (tmp_path / "out").mkdir()
    with (tmp_path / "out/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = typed("run", "--impl", "torch", "--out", "out")

    assert code == 2
    assert tells(err, "pipeconform", "another run", "out", "another --out")
    assert err.count("\n") == 1


def test_an_older_torch_is_refused_at_the_start(typed, monkeypatch):
    monkeypatch.setattr("pipeconform.supported.torch_version", lambda: "2.8.0")

    code, _, err = typed("run", "--impl", "torch")

    assert code == 2
    assert tells(err, "torch 2.8.0", "older", "pip install 'torch>=2.9,<2.16'", "--allow-untested-torch")
    assert err.count("\n") == 1


def test_an_older_torch_that_is_allowed_is_only_warned_about(typed, monkeypatch):
    for place in ("pipeconform.supported", "pipeconform.commands.options"):
        monkeypatch.setattr(f"{place}.torch_version", lambda: "2.8.0")
    code, _, err = typed("run", "--impl", "torch", "--profile", "gigantic", "--allow-untested-torch")

    assert code == 2
    assert tells(err.splitlines()[0], "warning", "torch 2.8.0", "not tested", "torch>=2.9,<2.16")
    assert "gigantic" in err
    assert ALLOW_UNTESTED not in os.environ


def test_a_traceback_is_shown_on_request_only(typed):
    assert "Traceback" not in typed("show", "fw1")[2]
    assert "Traceback" in typed("show", "fw1", "--debug")[2]


def test_debug_behind_the_double_dash_is_for_pytest(typed):
    _, _, err = typed("run", "--impl", "torch", "--profile", "smok", "--", "--debug")

    assert "Traceback" not in err


def test_a_mistake_of_ours_is_admitted(typed, monkeypatch):
    def broken():
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("pipeconform.commands.list.all_chapters", broken)
    code, _, err = typed("list")

    assert code == 3
    assert tells(err, "internal error of pipeconform", "ZeroDivisionError: division by zero", "--debug")
    assert err.count("\n") == 1


def test_requirements_are_listed(typed):
    code, out, _ = typed("list")

    assert code == 0
    assert "  FWD-1   MUST    Outputs\n" in out


def test_a_requirement_is_shown_whatever_the_case_of_its_letters(typed):
    code, out, _ = typed("show", "trn-1")

    assert code == 0
    assert out.startswith("TRN-1  Gradients  (MUST)\n")
    assert "\nWhy        " in out


def test_the_skeleton_is_written_once(typed, tmp_path):
    assert typed("init", "deep/mine.py")[0] == 0
    written = (tmp_path / "deep/mine.py").read_text()
    code, _, err = typed("init", "deep/mine.py")

    assert code == 2
    assert tells(err, "deep/mine.py", "exists already", "another name")
    assert err.count("\n") == 1
    assert Path("deep/mine.py").read_text() == written


def test_doctor_really_forms_a_group(typed):
    code, out, _ = typed("doctor")

    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines() if "rank processes" in line] == ["ok"]
    assert "a gloo group of 2 in" in out


def test_doctor_names_the_remedy_for_a_torch_that_is_not_supported(typed, monkeypatch):
    monkeypatch.setattr("pipeconform.commands.doctor.torch_version", lambda: "2.8.0")
    code, out, _ = typed("doctor")

    assert code == 3
    assert (
        "FAIL  torch             torch 2.8.0 is older than the releases that pipeconform is tested with\n"
        in out
    )
    assert "-> pip install 'torch>=2.9,<2.16', or try --allow-untested-torch\n" in out
    assert "rank processes" not in out


def test_doctor_warns_about_a_torch_that_is_not_tested(typed, monkeypatch):
    monkeypatch.setattr("pipeconform.commands.doctor.torch_version", lambda: "2.16.0.dev20261101")
    monkeypatch.setattr(
        "pipeconform.commands.doctor._rank_processes", lambda: Check(name="x", state="ok", text="")
    )
    code, out, _ = typed("doctor")

    assert code == 0
    assert "warn  torch             2.16.0.dev20261101: not tested with this release" in out


@pytest.mark.parametrize(
    ("requirement", "control"),
    [
        ("DPC-6", "Control    the same case without the delay"),
        ("TRN-1", "Control    none: a plain case has nothing to remove"),
        ("DPW-1", "Control    none: a plain case has nothing to remove"),
        ("DPW-22", "Control    the same case with an ordinary module, without options, trained plainly"),
    ],
)
def test_show_says_what_the_control_of_a_requirement_is(requirement, control):
    done = CliRunner().invoke(cli.pipeconform, ["show", requirement])

    assert done.exit_code == 0
    assert control in done.output.splitlines()


def test_python_m_in_a_clone_that_is_not_installed_as_such_says_what_to_run(pytestconfig, tmp_path):
    """The folder has the package, and not the standard, which lies beside it."""
    (tmp_path / "pipeconform").symlink_to(pytestconfig.rootpath / "pipeconform")
    without_editable = (
        "import sys; sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in str(one).casefold()]; "
        "sys.path.insert(0, ''); from pipeconform.cli import main; main(['list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", without_editable], cwd=tmp_path, check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pipeconform: Python takes pipeconform from ")
    assert "run 'pipeconform' instead of 'python -m pipeconform'" in done.stderr
