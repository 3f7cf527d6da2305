"""``pipeconform report``: make HTML pages from result files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from pipeconform.commands.known import known_in, known_option
from pipeconform.commands.say import say
from pipeconform.errors import BadResultError, UsageError
from pipeconform.report.causes import Known
from pipeconform.report.collection import Collection, collect, page_of
from pipeconform.report.history import Order
from pipeconform.report.html import render_history, render_index, render_page
from pipeconform.report.html.index import history_name
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Result, read_result
from pipeconform.report.words import plural
from pipeconform.writing import whole_file

__all__ = ["INDEX_NAME", "PAGE_NAME", "report", "write_index", "write_page"]

PAGE_NAME = "report.html"
INDEX_NAME = "index.html"


@click.command(short_help="Write HTML pages from result files.")
@click.argument(
    "results", metavar="RESULT.json…|FOLDER", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The page to write, or the folder of an index.  [default: report.html beside the first result; for an index, "
    "the folder itself]",
)
@click.option(
    "--by",
    type=click.Choice(get_args(Order)),
    help="Show a history instead: a column per result, by the implementation's version or the time of the run.",
)
@known_option
def report(results: tuple[Path, ...], out: Path | None, by: Order | None, known_file: Path | None) -> None:
    """Write one self-contained HTML page: the causes, the matrix, every violation with pictures, counts, environment.

    Several results are shown side by side, what was fixed or broken first; with --by, a history of many: in which
    release a requirement was broken or mended. A folder stands for the result.json in it. A folder without one stands
    for all results below it: each gets its page, each implementation its history, and index.html lists them.
    The pages are made from the files alone: nothing is executed, imported from an adapter or downloaded.
    """
    known = known_in(known_file)
    if len(results) == 1 and results[0].is_dir() and not (results[0] / RESULT_NAME).exists():
        if by is None:
            write_index(results[0], results[0] if out is None else out, known=known)
            return
        results = _results_below(results[0])
    files = tuple(path / RESULT_NAME if path.is_dir() else path for path in results)
    page = files[0].with_name(PAGE_NAME) if out is None else out
    if page.is_dir():
        page /= PAGE_NAME
    if page.resolve() in {file.resolve() for file in files}:
        raise UsageError(f"--out {page} is one of the results to read; choose another name")
    if by is None:
        write_page([(read_result(file), file) for file in files], page, known=known)
    else:
        _write(render_history([read_result(file) for file in files], by=by), page)
    say(f"report: {page}")


def _results_below(folder: Path) -> tuple[Path, ...]:
    found = _collected(folder)
    return tuple(folder / one.path for one in found.results)


def _collected(folder: Path) -> Collection:
    found = collect(folder)
    for why in found.unreadable:
        say(f"pipeconform: not read: {why}", err=True)
    if not found.results:
        raise BadResultError(f"{folder}: there is no result below it; 'pipeconform run' writes result files")
    return found


def write_index(folder: Path, out: Path, *, known: Sequence[Known] | None = None) -> None:
    """Write a page for each result below `folder`, a history for each implementation, and the index of all.

    Raises:
        UsageError: `out` is a file.
        BadResultError: there is no result, or a page cannot be written; the message names it.
    """
    if out.is_file():
        raise UsageError(f"--out {out} is a file; an index needs a folder for its pages")
    found = _collected(folder)
    by_name: dict[str, list[Result]] = {}
    for one in found.results:
        write_page([(one.result, folder / one.path)], out / page_of(one.path), known=known)
        by_name.setdefault(one.result.implementation.name, []).append(one.result)
    for name, several in by_name.items():
        if len(several) > 1:
            _write(render_history(several, by="version"), out / history_name(name))
    name = folder.resolve().name or str(folder)
    _write(render_index(found, name=name, known_causes=known), out / INDEX_NAME)
    say(f"index of {plural(len(found.results), 'result')}: {out / INDEX_NAME}")


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
