"""What the pages on several machines show: the script for one machine runs as it stands, all options exist.

srun and kubectl are not here to be asked: what is checked of their files is what they start.
"""

import re
import shlex

import click
import pytest
from torch.distributed.run import get_args_parser

from benchmarks.gpu.__main__ import parser_of_options
from pipeconform.agent import main
from pipeconform.cli import pipeconform
from tests.docs.pages import blocks, shell

PAGE = "clusters.md"


@pytest.fixture(scope="module")
def page(pytestconfig):
    return pytestconfig.rootpath / "docs" / PAGE


@pytest.mark.slow
def test_the_script_for_one_machine_runs_as_it_stands(page, tmp_path):
    (script,) = [block for block in blocks(page) if block.language == "bash"]
    done = shell(script.text, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "meets all 2 judged requirements" in done.stdout
    assert "agents: 2" in done.stderr


def test_every_agent_that_is_shown_is_started_with_options_that_exist(page):
    text = re.sub(
        r"\n +- (?=-|pipeconform\.agent)", " ", page.read_text()
    )  # a command in a manifest is a list
    shown = re.findall(r"-m pipeconform\.agent (--[^&\n]*)", text)
    known = {option for parameter in main.params for option in parameter.opts}

    assert len(shown) == 4
    for command in shown:
        used = {word.partition("=")[0] for word in shlex.split(command) if word.startswith("--")}
        assert "--controller" in used
        assert used <= known


GPU = {option for action in parser_of_options()._actions for option in action.option_strings}
TORCHRUN = {name.replace("_", "-") for action in get_args_parser()._actions for name in action.option_strings}
ELSEWHERE = {
    "--nodes",
    "--ntasks-per-node",
    "--cpus-per-task",
    "--array",
    "--requeue",
    "--open-mode",
    "--no-kill",
}
"""Options of Slurm."""
OTHERS = {"--dist", "--pipeconform-expectations", "--index-url", "--from-literal", "--working-dir"}
"""Options of pytest-xdist, of pytest with our plugin, of pip, of kubectl and of ray."""


def options_of(command):
    found = {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}
    if not isinstance(command, click.Group):
        return found
    context = click.Context(command)
    return found.union(
        *(options_of(command.get_command(context, name)) for name in command.list_commands(context))
    )


@pytest.mark.parametrize("name", ["clusters.md", "attach.md", "gating.md"])
def test_every_option_that_is_named_exists(pytestconfig, name):
    text = (pytestconfig.rootpath / "docs" / name).read_text()
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    own = options_of(pipeconform) | options_of(main)

    assert named
    assert named - own - TORCHRUN - ELSEWHERE - OTHERS - GPU == set()


def test_every_torchrun_that_is_shown_has_options_that_exist(page):
    shown = re.findall(r"torchrun ((?:--[^`&\n]*?)?)(?: -m|`)", page.read_text())
    used = {word.partition("=")[0] for line in shown for word in shlex.split(line) if word.startswith("--")}

    assert {"--nproc-per-node", "--max-restarts", "--nnodes"} <= used <= TORCHRUN
