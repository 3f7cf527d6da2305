"""``pipeconform report``: make one HTML page from result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from pipeconform.commands.known import known_in, known_option
from pipeconform.commands.say import say
from pipeconform.errors import BadResultError, UsageError
from pipeconform.report.causes import Known
from pipeconform.report.history import Order
from pipeconform.report.html import render_history, render_page
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Result, read_result
from pipeconform.writing import whole_file

__all__ = ["PAGE_NAME", "report", "write_page"]

PAGE_NAME = "report.html"


@click.command(short_help="Write one HTML page from result files.")
@click.argument("results", metavar="RESULT.json…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The page to write.  [default: report.html beside the first result]",
)
@click.option(
    "--by",
    type=click.Choice(get_args(Order)),
    help="Show a history instead: a column per result, by the implementation's version or the time of the run.",
)
@known_option
def report(results: tuple[Path, ...], out: Path | None, by: Order | None, known_file: Path | None) -> None:
    """Write one self-contained HTML page: the causes, the matrix, every violation with pictures, counts, environment.

    Several results are shown side by side, differences first; with --by, a history of many: in which release a
    requirement was broken or mended. A folder stands for the result.json in it.
    The page is made from the files alone: nothing is executed, imported from an adapter or downloaded.
    """
    files = tuple(path / RESULT_NAME if path.is_dir() else path for path in results)
    page = files[0].with_name(PAGE_NAME) if out is None else out
    if page.is_dir():
        page /= PAGE_NAME
    if page.resolve() in {file.resolve() for file in files}:
        raise UsageError(f"--out {page} is one of the results to read; choose another name")
    known = known_in(known_file)
    if by is None:
        write_page([(read_result(file), file) for file in files], page, known=known)
    else:
        _write(render_history([read_result(file) for file in files], by=by), page)
    say(f"report: {page}")


def write_page(
    results: Sequence[tuple[Result, Path]], page: Path, *, known: Sequence[Known] | None = None
) -> None:
    """Make a page from results and the files they were read from, and write it completely or not at all.

    `known` lists findings, as in `causes_of`.

    Raises:
        BadResultError: the page cannot be written; the message names it.
    """
    _write(render_page(results, known_causes=known), page)


def _write(text: str, page: Path) -> None:
    try:
        with whole_file(page) as part:
            part.write_text(text, "utf-8")
    except OSError as error:
        raise BadResultError(
            f"cannot write {page}: {error.strerror or error}; choose another --out"
        ) from error
