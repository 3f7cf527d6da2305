"""What clusters.md shows of attached ranks: the script for one machine runs as it stands, options exist."""

import re
import shlex

import pytest

from pipeconform.agent import main
from tests.docs.pages import blocks, shell

PAGE = "clusters.md"


@pytest.fixture(scope="module")
def page(pytestconfig):
    return pytestconfig.rootpath / "docs" / PAGE


def test_the_script_for_one_machine_runs_as_it_stands(page, tmp_path):
    (script,) = [block for block in blocks(page) if block.language == "bash"]
    done = shell(script.text, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "meets all 2 judged requirements" in done.stdout
    assert "agents: 2" in done.stderr


def test_every_agent_that_is_shown_is_started_with_options_that_exist(page):
    text = re.sub(r"\[python, (.*)\]", lambda found: "python " + found[1].replace(",", ""), page.read_text())
    shown = re.findall(r"-m pipeconform\.agent (--[^&\n]*)", text)
    known = {option for parameter in main.params for option in parameter.opts}

    assert len(shown) == 4
    for command in shown:
        used = {word for word in shlex.split(command) if word.startswith("--")}
        assert "--controller" in used
        assert used <= known
