"""``pipeconform init FILE``: write an adapter that runs, to be changed step by step."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

from pipeconform.commands.say import say
from pipeconform.errors import UsageError

__all__ = ["init", "skeleton"]


@click.command(short_help="Write an adapter skeleton that runs as is.")
@click.argument("file", type=click.Path(path_type=Path))
def init(file: Path) -> None:
    """Write a commented adapter skeleton that runs as is.

    It drives a toy engine; comments say what to replace with your own code.
    """
    if file.suffix != ".py":
        raise UsageError(f"an adapter is a Python file: expected a name such as {file.with_suffix('.py')}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as target:
            target.write(skeleton(name=str(file)))
    except FileExistsError as error:
        raise UsageError(f"{file} exists already and is left as it is; choose another name") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
    say(f"wrote {file}; judge it with\n  pipeconform run --impl {file}:MyAdapter --profile smoke")


def skeleton(*, name: str) -> str:
    """The skeleton's text for a file called `name`."""
    text = resources.files("pipeconform.adapters").joinpath("skeleton.py").read_text("utf-8")
    return text.replace("THIS_FILE.py", name)
