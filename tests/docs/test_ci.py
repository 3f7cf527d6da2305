"""ci.md, the hook for pre-commit and the workflow that others call: what they name exists, and what they run runs."""

import json
import os
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET

import pytest

from pipeconform.commands.init import skeleton
from pipeconform.spec.selection import require_requirement
from tests.docs.pages import blocks, shell
from tests.docs.test_commands import unknown

yaml = pytest.importorskip("yaml", reason="needs the extra 'docs'")

WORKFLOW = ".github/workflows/conformance.yml"
WRONG = ("losses[k] / len(losses) if self._mean else losses[k]", "losses[k]")
FEW = {"IMPL": "adapter.py:MyAdapter", "PROFILE": "smoke", "REQUIREMENTS": "FWD-1,TRN-3"}


@pytest.fixture(scope="module")
def page(pytestconfig):
    return pytestconfig.rootpath / "docs/ci.md"


@pytest.fixture(scope="module")
def workflow(pytestconfig):
    return yaml.safe_load((pytestconfig.rootpath / WORKFLOW).read_text("utf-8"))


@pytest.fixture(scope="module")
def inputs(workflow):
    return workflow[True]["workflow_call"]["inputs"]  # YAML 1.1 reads the key "on" as true


@pytest.fixture(scope="module")
def steps(workflow):
    return workflow["jobs"]["conformance"]["steps"]


def titled(page, title):
    (found,) = [block for block in blocks(page) if block.title == title]
    return yaml.safe_load(found.text)


# ------------------------------------------------------------------ the workflow


def test_every_input_is_described_typed_and_used_and_no_other_is_used(pytestconfig, inputs):
    text = (pytestconfig.rootpath / WORKFLOW).read_text("utf-8")

    assert set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", text)) == set(inputs)
    needed = ("impl", "pipeconform")  # no index has it yet: a name alone would install whatever is called so
    for name, one in inputs.items():
        assert set(one) == {"description", "type", "required" if name in needed else "default"}, name
        assert one["type"] == "string"
        assert one.get("required", True) is True


def test_a_cpu_build_of_torch_is_installed_before_pipeconform_unless_another_is_wanted(
    steps, inputs, tmp_path
):
    (install,) = [step["run"] for step in steps if step.get("name") == "Install"]
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "python").write_text('#!/bin/sh\necho "$@" >> installed\n')
    (bin / "python").chmod(0o755)
    (tmp_path / "install.sh").write_text(install)
    variables = {"PIPECONFORM": "pipeconform @ git+https://x.org/p@1", "INSTALL": "echo engine >> installed"}
    for torch in (inputs["torch"]["default"], ""):
        path = f"{bin}:{os.environ['PATH']}"
        done = shell("bash -eo pipefail install.sh", tmp_path, PATH=path, TORCH=torch, **variables)
        assert done.returncode == 0, done.stderr

    rest = ["-m pip install pipeconform @ git+https://x.org/p@1", "engine"]
    assert (tmp_path / "installed").read_text().splitlines() == [
        "-m pip install torch --index-url https://download.pytorch.org/whl/cpu",
        *rest,
        *rest,
    ]


def test_every_step_uses_a_fixed_version_or_runs_a_script_that_bash_reads(steps):
    for step in steps:
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
        else:
            assert subprocess.run(["bash", "-n"], input=step["run"], text=True, check=False).returncode == 0


def test_no_input_becomes_part_of_a_script(steps):
    """An input in a script could be a command; in a variable it is text."""
    scripts = [step["run"] for step in steps if "run" in step]

    assert len(scripts) == 2
    for step in steps:
        assert "${{" not in step.get("run", "")
        used = set(re.findall(r"\$\{?([A-Z]+)\b", step.get("run", "")))
        assert used == set(step.get("env", {}))


def test_the_workflow_asks_for_no_right_but_to_read(workflow):
    assert workflow["permissions"] == {"contents": "read"}


def test_the_workflow_s_commands_exist_with_their_options(steps):
    (judge,) = [step["run"] for step in steps if step.get("name") == "Judge"]
    options = re.findall(r"--[a-z-]+", judge.partition("if [ -z")[0])

    assert unknown(f"pipeconform run {' '.join(options)} --no-github") == []
    assert unknown("pipeconform compare a b --format github") == []


@pytest.mark.slow
def test_the_workflow_judges_annotates_and_lets_through_what_is_known(steps, inputs, tmp_path):
    (judge,) = [step for step in steps if step.get("name") == "Judge"]
    defaults = {name: str(inputs[name.lower()].get("default", "")) for name in judge["env"]}
    variables = (
        defaults | FEW | {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    )
    (tmp_path / "adapter.py").write_text(skeleton(name="adapter.py").replace(*WRONG), "utf-8")
    (tmp_path / "judge.sh").write_text(judge["run"])
    script = "bash --noprofile --norc -eo pipefail judge.sh"

    done = shell(script, tmp_path, **variables)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "::error file=adapter.py,line=" in done.stdout
    assert "### pipeconform: toy GPipe 1.0 violates" in (tmp_path / "summary.md").read_text()

    (tmp_path / "pipeconform-results/result.json").rename(tmp_path / "baseline.json")
    done = shell(script, tmp_path, **(variables | {"BASELINE": "baseline.json"}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "::error" not in done.stdout
    assert "::notice title=pipeconform::nothing got worse" in done.stdout


def test_the_page_calls_the_workflow_with_inputs_that_it_has(page, inputs):
    (job,) = titled(page, ".github/workflows/conformance.yml")["jobs"].values()

    assert re.fullmatch(rf"OWNER/pipeconform/{re.escape(WORKFLOW)}@SHA", job["uses"])
    assert set(job["with"]) <= set(inputs)
    assert {name for name, one in inputs.items() if one.get("required")} <= set(job["with"])
    text = page.read_text("utf-8")
    assert [name for name in inputs if f"`{name}`" not in text and name not in job["with"]] == []


# ------------------------------------------------------------------ the hook


@pytest.fixture(scope="module")
def hook(pytestconfig):
    (found,) = yaml.safe_load((pytestconfig.rootpath / ".pre-commit-hooks.yaml").read_text("utf-8"))
    return found


def test_the_hook_is_what_pre_commit_expects(hook):
    needed = {"id", "name", "entry", "language"}

    assert needed <= set(hook) <= needed | {"description", "types", "pass_filenames", "require_serial"}
    assert hook["id"] == "pipeconform"
    assert hook["language"] == "system"
    assert hook["pass_filenames"] is False  # files of a commit are no arguments of run


def test_the_hook_s_command_and_requirements_exist(hook):
    assert unknown(hook["entry"]) == []
    words = shlex.split(hook["entry"])
    for name in words[words.index("--requirements") + 1].split(","):
        require_requirement(name)


def test_the_page_configures_the_hook_by_its_id(page, hook):
    (repository,) = titled(page, ".pre-commit-config.yaml")["repos"]
    (one,) = repository["hooks"]

    assert one["id"] == hook["id"]
    assert unknown(shlex.join([*shlex.split(hook["entry"]), *one["args"]])) == []


@pytest.mark.slow
def test_the_hook_passes_what_is_right_stops_what_is_wrong_and_costs_little(hook, tmp_path):
    command = f"{hook['entry']} --impl adapter.py:MyAdapter"
    (tmp_path / "adapter.py").write_text(skeleton(name="adapter.py"), "utf-8")
    done = shell(f"TIMEFORMAT='%U %S'; time {command}", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        sum(map(float, done.stderr.split()[-2:])) < 20
    )  # seconds of processor time: other programs run, too

    (tmp_path / "adapter.py").write_text(skeleton(name="adapter.py").replace(*WRONG), "utf-8")
    assert shell(command, tmp_path).returncode == 1
    assert (tmp_path / "pipeconform-results/quick/result.json").exists()


# ------------------------------------------------------------------ what the page shows


def without_numbers(text):
    """A busy machine may find another smallest case."""
    return re.sub(r"\d+", "#", text)


@pytest.mark.slow
def test_what_the_page_shows_is_what_a_run_prints(page, tmp_path):
    (tmp_path / "adapter.py").write_text(skeleton(name="adapter.py").replace(*WRONG), "utf-8")
    done = shell(
        "pipeconform run --impl adapter.py:MyAdapter --profile smoke --requirements FWD-1,FWD-9,TRN-1,TRN-3,TRN-4 -q",
        tmp_path,
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"),
    )
    shown = {block.language: block.text for block in reversed(blocks(page))}
    summary = (tmp_path / "summary.md").read_text()

    assert without_numbers(shown["text"]) in without_numbers(done.stdout)
    assert [line for line in shown["markdown"].splitlines() if line not in summary.splitlines()] == []
    assert shown["xml"] in (tmp_path / "pipeconform-results/junit.xml").read_text()
    ET.fromstring(shown["xml"])


@pytest.mark.slow
def test_the_page_s_pytest_command_shows_the_progress_that_is_printed(page, tmp_path):
    (command,) = [
        block.text.removeprefix("$ ").strip() for block in blocks(page) if block.language == "console"
    ]
    (lines,) = [block.text.splitlines() for block in blocks(page) if "PASSED" in block.text]
    small = "--pipeconform-schedules=gpipe,forwardonly --pipeconform-ranks=2"
    done = shell(f"{command} {small}", tmp_path, COLUMNS="98")

    assert done.returncode == 1, done.stderr
    printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert [line for line in lines if " ".join(line.split()) not in printed] == []
    assert json.loads((tmp_path / ".pytest_cache/v/cache/lastfailed").read_text())
