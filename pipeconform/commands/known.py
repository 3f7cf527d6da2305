"""``--known FILE``: findings of the user's own that causes may be known as."""

from __future__ import annotations

from pathlib import Path

import click

from pipeconform.report.causes import Known, read_known, shipped

__all__ = ["known_in", "known_option"]

known_option = click.option(
    "--known",
    "known_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File of findings that causes may be known as, before those that pipeconform has.",
)


def known_in(file: Path | None) -> tuple[Known, ...] | None:
    """The findings of a file, then those of the package; None without a file, which stands for the package's.

    Raises:
        BadKnownError: the file cannot be read, or has an incomplete or wrong entry.
    """
    return None if file is None else (*read_known(file), *shipped())
