"""Every command that a page shows exists, with every option that it is shown with, and is run by a test."""

import re
import shlex

import click
import pytest

from pipeconform.cli import pipeconform
from pipeconform.commands.init import skeleton
from tests.docs.pages import blocks, shell

SHOWN = re.compile(
    r"`(pipeconform [^`]+)`|^(?:    |\$ |(?:- )?(?:run: )?)(pipeconform [a-z].*)$", re.MULTILINE
)
RUN_BY = {
    "certify.md": "test_pages.py",
    "ci.md": "test_ci.py",
    "clusters.md": "test_attach.py",
    "gating.md": "test_pages.py",
    "reading-a-failure.md": "test_reading_a_failure.py",
    "schedules.md": "test_schedules.py",
}
"""Which tests run the blocks of commands on a page as they stand."""


def pages(root):
    docs = root / "docs"
    return [
        root / "README.md",
        *sorted([*docs.glob("*.md"), *docs.glob("learn/*.md"), *docs.glob("reference/*.md")]),
    ]


def commands(text):
    """What is shown, without remarks and what a shell adds."""
    for inline, line in SHOWN.findall(text):
        yield re.split(r"\s+#\s|\s+[|]{1,2}\s", inline or line)[0].replace("…", "")


def unknown(command):
    """What the command line does not know of a command: a name, or options."""
    found, words = pipeconform, shlex.split(command)[1:]
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        known = found.get_command(click.Context(found), words[0])
        if known is None:
            return [words[0]]
        found, words = known, words[1:]
    options = {one for parameter in found.params for one in (*parameter.opts, *parameter.secondary_opts)}
    own = words[: words.index("--")] if "--" in words else words
    return [word for word in own if word.startswith("-") and word.partition("=")[0] not in options]


def test_what_does_not_exist_is_found():
    assert unknown("pipeconform judge --impl torch") == ["judge"]
    assert unknown("pipeconform run --impl torch --fast -- --slow") == ["--fast"]
    assert unknown("pipeconform expect update --write results --reason=x") == []


def test_every_command_that_is_shown_exists_with_its_options(pytestconfig):
    shown = [(page.name, one) for page in pages(pytestconfig.rootpath) for one in commands(page.read_text())]

    assert {"README.md", "certify.md", "gating.md", "engines.md", "writing-an-adapter.md"} <= {
        name for name, _ in shown
    }
    assert [(name, command, unknown(command)) for name, command in shown if unknown(command)] == []


def test_every_page_with_blocks_of_commands_has_a_test_that_runs_them(pytestconfig):
    docs = pytestconfig.rootpath / "docs"
    found = {
        page.name
        for page in docs.glob("*.md")
        if any(block.language in ("console", "bash", "yaml") for block in blocks(page))
    }

    assert found == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert page in (docs.parent / "tests/docs" / test).read_text()


@pytest.mark.slow
def test_the_first_commands_of_the_adapter_page_run_as_they_stand(pytestconfig, tmp_path):
    text = (pytestconfig.rootpath / "docs/writing-an-adapter.md").read_text().partition("\n## ")[0]
    shown = [line.strip() for line in text.splitlines() if line.startswith("    pipeconform ")]
    done = [shell(command, tmp_path) for command in shown]

    assert [(one.returncode, one.stderr) for one in done] == [(0, "")] * 2
    assert "toy GPipe 1.0 meets all " in done[-1].stdout


def test_what_the_adapter_page_shows_of_claims_is_printed(pytestconfig, typed, tmp_path):
    (tmp_path / "my_adapter.py").write_text(skeleton(name="my_adapter.py"), "utf-8")
    (shown,) = [
        block.text.splitlines()
        for block in blocks(pytestconfig.rootpath / "docs/writing-an-adapter.md")
        if " claims " in block.text and block.language == "text"
    ]
    printed = typed("claims", "my_adapter.py:MyAdapter")[1].splitlines()

    assert [line for line in shown if line != "…" and line not in printed] == []


@pytest.mark.parametrize("command", ["show", "doctor"])
def test_the_readme_s_commands_without_placeholders_run(pytestconfig, tmp_path, command):
    text = (pytestconfig.rootpath / "README.md").read_text()
    (shown,) = [
        one
        for one in commands(text)
        if one.startswith(f"pipeconform {command} ") or one == f"pipeconform {command}"
    ]

    assert shell(shown, tmp_path).returncode == 0
