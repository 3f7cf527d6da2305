"""``pipeconform merge``: put the shards of a certification together."""

from __future__ import annotations

from pathlib import Path

import click

from pipeconform.commands.say import say_line
from pipeconform.commands.verify import verdict_lines

__all__ = ["merge"]


@click.command(short_help="Put the shards of a certification together.")
@click.argument("shards", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The package.")
@click.option(
    "--allow-different-environments", is_flag=True, help="Merge although the shards ran in different ones."
)
def merge(shards: tuple[Path, ...], out: Path, allow_different_environments: bool) -> int:
    """Put the shards of one certification together and decide about the level."""
    from pipeconform.certificate.shards import merge_into  # noqa: PLC0415 - imports torch

    checked = merge_into(out, shards, allow_different_environments=allow_different_environments)
    for doubt in checked.doubts:
        say_line(f"doubt: {doubt}")
    for line in verdict_lines(checked, "merged here, unsigned"):
        say_line(line)
    say_line(f"package: {out}")
    return int(not checked.granted)
