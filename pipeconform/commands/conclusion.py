"""The end of ``pipeconform run``: what it prints and writes, and its exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from pipeconform.commands.engine import Ended, unjudged
from pipeconform.commands.for_ci import tell_github, write_junit
from pipeconform.commands.report import PAGE_NAME, write_page
from pipeconform.commands.say import say, say_json
from pipeconform.errors import BadResultError, HarnessError, NothingJudgedError
from pipeconform.report.causes import Known, causes_of
from pipeconform.report.console import SafeConsole
from pipeconform.report.result import Result, as_json, read_result
from pipeconform.report.summary import render_summary, render_verdict

__all__ = ["Show", "conclude"]

INTERRUPTED = 130
_LOG_WIDTH = 110
Show = Literal["summary", "verdict", "json"]
_FAILED, _STOPPED = 1, 2  # pytest's exit codes; a distributed run that -x stops has the second


def conclude(
    ended: Ended,
    written: Path | None,
    *,
    show: Show,
    known: Sequence[Known] | None = None,
    verbose: bool = False,
    github: bool = False,
    expectations: Path | None = None,
) -> int:
    """Print what was found, write what is made from it, and return the exit code.

    `known` lists findings, as in `causes_of`; `verbose` also prints why cells were skipped; `github` annotates files
    for GitHub Actions, among them the file of `expectations`.

    Raises:
        UsageError: names, arguments or the adapter were refused.
        NothingJudgedError: the run ended normally but judged nothing.
        HarnessError: pytest or the suites failed, could not judge some cells, or the result could not be written.
    """
    ended.require_begun()
    result = ended.result if ended.unwritten else None
    if written is not None and result is None:
        result = read_result(written)
    cells = () if result is None else result.cells
    if result is not None:
        if show == "json":
            say_json(as_json(result).decode(), nl=False)
        elif cells:
            _print_summary(
                result, ended.kept or written, quiet=show == "verdict", known=known, verbose=verbose
            )
        if cells and written is not None and not ended.unwritten:
            ended.unwritten = _write_junit(result, written, expectations=expectations, known=known)
            _write_report(result, written, tell=show == "summary", known=known)
        if cells and github:
            where = ended.kept or written
            tell_github(result, where=where, expectations=expectations, known=known, err=show == "json")
    resuming = "" if written is None else f"go on with: pipeconform run --resume {written.parent}"
    if ended.interrupted:
        going_on = f"; {resuming}" if resuming else ""
        kept = (
            ended.unwritten or f"results so far in {written}{going_on}" if cells else "nothing was judged yet"
        )
        say(f"pipeconform: interrupted; {kept}", err=True)
        return INTERRUPTED
    if ended.unwritten:
        raise HarnessError(ended.unwritten)
    if ended.failures:
        ends_early = bool(cells) and not ended.complete
        raise HarnessError(
            _failures(ended.failures).rstrip() + (f"\n{resuming}" if ends_early and resuming else "")
        )
    if broken := unjudged(cells):
        raise HarnessError(broken)
    if not any(cell.is_judged for cell in cells):
        raise NothingJudgedError("nothing was judged: widen --requirements, --schedules, --ranks or -k")
    problems = () if result is None or result.expectations is None else result.expectations.problems
    violated = bool(problems) or (result is not None and any(not one.expected for one in causes_of(result)))
    if ended.code > _FAILED and not (ended.code == _STOPPED and violated):
        raise HarnessError(f"pytest ended with code {ended.code}; run again with --debug")
    return int(violated)


def _write_junit(
    result: Result, written: Path, *, expectations: Path | None, known: Sequence[Known] | None
) -> str:
    """Write ``junit.xml`` beside the result file; the error, if it cannot be written, and otherwise nothing."""
    try:
        write_junit(result, written.parent, expectations=expectations, known=known)
    except BadResultError as error:
        return f"{error}; the result file is complete"
    return ""


def _write_report(result: Result, written: Path, *, tell: bool, known: Sequence[Known] | None) -> None:
    """Write the page beside the result file; an error there is reported and does not change the verdict."""
    page = written.with_name(PAGE_NAME)
    try:
        write_page([(result, written)], page, known=known)
    except Exception as error:
        with contextlib.suppress(OSError):
            page.unlink(missing_ok=True)  # an older run's page could be mistaken for this one's
        say(f"pipeconform: no report at {page}: {error}; the result file is complete", err=True)
    else:
        if not tell:
            return
        with contextlib.suppress(BrokenPipeError):  # a closed pipe does not change the verdict
            say(f"report: {page}")


def _print_summary(
    result: Result, written: Path | None, *, quiet: bool, known: Sequence[Known] | None, verbose: bool
) -> None:
    console = SafeConsole(width=_width())
    with contextlib.suppress(SystemExit):  # rich exits when the pipe is closed
        if quiet:
            render_verdict(result, console, known=known)
        else:
            say()
            render_summary(result, console, where=written, known=known, verbose=verbose)


def _width() -> int | None:
    """The width of what is printed: None lets the terminal decide; files and logs have room for titles."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else _LOG_WIDTH


def _failures(texts: list[str]) -> str:
    """Errors of the suites themselves: the last line of the first, or all of them with ``--debug``."""
    if texts[0].startswith("the harness failed"):
        return texts[0]
    if click.get_current_context().obj:
        return "the suites failed:\n" + "\n".join(texts)
    last = (texts[0].strip().splitlines() or [""])[-1].removeprefix("E").strip()
    return f"the suites failed: {last}; please run again with --debug and report it"
