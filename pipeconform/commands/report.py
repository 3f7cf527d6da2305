"""``pipeconform report``: make HTML pages from result files, or from a certification package."""

from __future__ import annotations

import webbrowser
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from pipeconform.commands.known import known_in, known_option
from pipeconform.commands.say import say
from pipeconform.errors import BadResultError, UsageError
from pipeconform.plural import plural
from pipeconform.report.causes import Known
from pipeconform.report.collection import Collection, collect, page_of
from pipeconform.report.history import Order
from pipeconform.report.html import render_history, render_index, render_page
from pipeconform.report.html.index import history_name
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Result, read_result
from pipeconform.writing import whole_file

__all__ = ["INDEX_NAME", "PAGE_NAME", "report", "write_index", "write_page"]

PAGE_NAME = "report.html"
COMPARISON_NAME = "comparison.html"
HISTORY_NAME = "history.html"
INDEX_NAME = "index.html"


@click.command(short_help="Write HTML pages from result files or from a package.")
@click.argument(
    "results",
    metavar="RESULT.json…|FOLDER|PACKAGE",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The page to write, or the folder of an index.  [default: beside the first result report.html, of several "
    "comparison.html, with --by history.html; PACKAGE's name with .html; for an index the folder itself]",
)
@click.option(
    "--by",
    type=click.Choice(get_args(Order)),
    help="Show a history instead: a column per result, by the implementation's version or the time of the run.",
)
@known_option
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
def report(
    results: tuple[Path, ...], out: Path | None, by: Order | None, known_file: Path | None, opens: bool
) -> None:
    """Write one self-contained HTML page: the causes, the matrix, every violation with pictures, counts, environment.

    Several results are shown side by side, what was fixed or broken first; with --by, a history of many: in which
    release a requirement was broken or mended. A folder stands for the result.json in it. A folder without one stands
    for all results below it: each gets its page, each implementation its history, and index.html lists them.
    The pages are made from the files alone: nothing is executed, imported from an adapter or downloaded.

    Given a certification package, check it as 'pipeconform verify' does, and write its page and, beside that, its
    badge; a package in which there is any doubt is refused.
    """
    if any(zipfile.is_zipfile(path) for path in results):
        page = _of_package(results, out)
    elif by is None and _is_collection(results):
        page = write_index(results[0], results[0] if out is None else out, known=known_in(known_file))
    else:
        files = results
        if _is_collection(results):
            files, out = _results_below(results[0]), results[0] if out is None else out
        page = _of_results(files, out, by=by, known=known_in(known_file))
    if opens:
        _open(page)


def _is_collection(paths: Sequence[Path]) -> bool:
    """Whether the only path is a folder of several results."""
    return len(paths) == 1 and paths[0].is_dir() and not (paths[0] / RESULT_NAME).exists()


def _of_results(
    paths: Sequence[Path], out: Path | None, *, by: Order | None, known: Sequence[Known] | None
) -> Path:
    """Write the page of results, or with `by` their history; the path of the page.

    Without `out` it is beside the first result, and never has the name of one result's page: that would be lost.
    """
    files = tuple(path / RESULT_NAME if path.is_dir() else path for path in paths)
    folder = files[0].parent
    name = HISTORY_NAME if by is not None else COMPARISON_NAME if files[1:] else PAGE_NAME
    page = folder / name if out is None else out
    if page.is_dir():
        page /= name
    if page.resolve() in {file.resolve() for file in files}:
        raise UsageError(f"--out {page} is one of the results to read; choose another name")
    if by is None:
        write_page([(read_result(file), file) for file in files], page, known=known)
    else:
        _write(render_history([read_result(file) for file in files], by=by), page)
    say(f"report: {page}")
    return page


def _of_package(paths: Sequence[Path], out: Path | None) -> Path:
    """Write the page of a certification package and its badge; the path of the page."""
    package, *others = paths
    if others:
        raise UsageError("a certification package has a page of its own: give one package and nothing else")
    from pipeconform.certificate.checks import sound_contents  # noqa: PLC0415 - imports torch
    from pipeconform.certificate.contents import BADGE, PAGE  # noqa: PLC0415
    from pipeconform.certificate.package import SUFFIX  # noqa: PLC0415
    from pipeconform.certificate.packing import views  # noqa: PLC0415

    made = views(sound_contents(package))
    name = package.name.removesuffix(SUFFIX).removesuffix(".zip")
    page = package.with_name(f"{name}.html") if out is None else out
    if page.is_dir():
        page /= f"{name}.html"
    picture = page.with_suffix(".svg")
    if package.resolve() in {page.resolve(), picture.resolve()}:
        raise UsageError(f"--out {page} is the package to read; choose another name")
    _write(made[PAGE].decode(), page)
    _write(made[BADGE].decode(), picture)
    say(f"report: {page}")
    say(f"badge: {picture}")
    return page


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        say(f"pipeconform: found no browser to open {page} in", err=True)


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


def write_index(folder: Path, out: Path, *, known: Sequence[Known] | None = None) -> Path:
    """Write a page for each result below `folder`, a history for each implementation, and the index, whose path it is.

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
    return out / INDEX_NAME


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
