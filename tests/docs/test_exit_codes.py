"""docs/exit-codes.md has the codes and the commands that the code has."""

import inspect
import re

import click
import pytest

from pipeconform import cli
from pipeconform.commands.conclusion import INTERRUPTED
from pipeconform.errors import PipeconformError


def rows(text, heading):
    """The first cells of a table."""
    table = text.partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [line.split("|")[1].strip().strip("`") for line in table]


@pytest.fixture
def page(pytestconfig):
    return (pytestconfig.rootpath / "docs/exit-codes.md").read_text("utf-8")


def kinds(error=PipeconformError):
    return {error, *(kind for one in error.__subclasses__() for kind in kinds(one))}


def commands(path=(), command=cli.pipeconform):
    """Every command that is no group, with its name."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from commands((*path, name), command.get_command(context, name))


def test_the_codes_are_those_of_the_errors_and_of_the_help(page):
    shown = [int(code) for code in rows(page, "code")]

    assert shown == sorted({0, 1, INTERRUPTED, *(kind.exit_code for kind in kinds())})
    assert shown == [int(code) for code in re.findall(r"^  (\d+)  ", cli._EPILOG, re.MULTILINE)]


def test_the_commands_with_an_answer_are_those_that_return_one(page):
    answering = {
        name for name, one in commands() if inspect.unwrap(one.callback).__annotations__["return"] == "int"
    }

    assert set(rows(page, "command")) == answering


def test_every_class_of_errors_is_in_the_tree_that_its_module_draws():
    tree = inspect.getdoc(inspect.getmodule(PipeconformError))

    assert {kind.__name__ for kind in kinds() if kind.__module__ == PipeconformError.__module__} <= set(
        re.findall(r"\w+", tree)
    )
