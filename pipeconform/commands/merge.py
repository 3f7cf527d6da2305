"""``pipeconform merge``: merge the shards of a certification."""

from __future__ import annotations

from pathlib import Path

import click

from pipeconform.commands.say import say_line
from pipeconform.commands.verify import verdict_lines

__all__ = ["merge"]


@click.command(short_help="Merge the shards of a certification.")
@click.argument("shards", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The package to write."
)
@click.option(
    "--allow-different-environments", is_flag=True, help="Merge shards that ran in different environments."
)
def merge(shards: tuple[Path, ...], out: Path, allow_different_environments: bool) -> int:
    """Merge the shards of one certification and decide whether the level is granted."""
    from pipeconform.certificate.shards import merge_into  # noqa: PLC0415 - imports torch

    checked = merge_into(out, shards, allow_different_environments=allow_different_environments)
    for doubt in checked.doubts:
        say_line(f"doubt: {doubt}")
    for line in verdict_lines(checked, "merged here, unsigned"):
        say_line(line)
    say_line(f"package: {out}")
    return int(not checked.granted)
