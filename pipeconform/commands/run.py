"""``pipeconform run``: judge an implementation."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pipeconform.commands.options import attach_options, device_options, impl_option, names
from pipeconform.commands.say import say, say_json
from pipeconform.errors import BadResultError, HarnessError, NothingJudgedError, UsageError
from pipeconform.report.location import DEFAULT_OUT, RESULT_NAME
from pipeconform.supported import require_supported_torch

if TYPE_CHECKING:
    from pipeconform.commands.engine import Ended
    from pipeconform.report.result import Cell, Result

__all__ = ["run"]

INTERRUPTED = 130
_LOG_WIDTH = 110
Show = Literal["summary", "verdict", "json"]
_FAILED, _STOPPED = 1, 2  # pytest's codes; -x stops a distributed run with the second


@click.command(short_help="Judge an implementation.")
@impl_option()
@click.option(
    "--profile",
    metavar="NAME",
    default="core",
    show_default=True,
    help="How much to do: smoke, core, full or exhaustive.",
)
@click.option(
    "--schedules", metavar="A,B", help="Judge only these schedules.  [default: all that are claimed]"
)
@click.option(
    "--requirements", metavar="IDS", help="Judge only these, ids or chapters: FWD-1,TRN.  [default: all]"
)
@click.option(
    "--ranks",
    metavar="N|A-B",
    default="1-4",
    show_default=True,
    help="Numbers of pipeline ranks to draw cases for.",
)
@click.option("-k", "keyword", metavar="EXPR", help="Judge only cells whose test matches; pytest's -k.")
@click.option(
    "--seed", metavar="N", type=int, default=0, show_default=True, help="Equal seeds draw equal cases."
)
@click.option(
    "--examples",
    metavar="N",
    type=click.IntRange(min=1),
    help="Cases per subject and schedule.  [default: the profile's]",
)
@click.option(
    "-n", "workers", metavar="WORKERS", help="Judge schedules in several processes: a number or auto."
)
@click.option("-x", "exit_first", is_flag=True, help="Stop after the first cell that is not met.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=DEFAULT_OUT,
    show_default=True,
    help="Where result.json, report.html and junit.xml are written.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print the last word only.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result file on standard output, nothing else."
)
@click.option(
    "--expectations",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Failures that are known and expected; everything else, and every wrong entry, fails the run.",
)
@device_options
@attach_options
@click.argument("pytest_args", metavar="[-- PYTEST_ARGS]", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    impl: str,
    profile: str,
    schedules: str | None,
    requirements: str | None,
    ranks: str,
    keyword: str | None,
    workers: str | None,
    exit_first: bool,
    out: Path,
    expectations: Path | None,
    quiet: bool,
    as_json: bool,
    pytest_args: tuple[str, ...],
    **others: Any,
) -> int:
    """Judge an implementation and say which requirements it meets, and which not by what smallest case.

    Every requirement is judged under every schedule that the implementation claims. A data-parallel wrapper
    (torch-ddp, torch-fully-shard, torch-fsdp, reference-wrapper, or your own by pipeconform.wrapper) has no
    schedules; it is judged by chapter DPW. What follows -- goes to pytest, the engine; it loads no other plugin unless
    told to by -- -p NAME.
    """
    _check(
        profile=profile, requirements=names(requirements), ranks=ranks, workers=workers, others=pytest_args
    )
    from pipeconform.execute.implementation import resolve

    resolve(impl)
    if expectations is not None:
        from pipeconform.gate.expectations import read_expectations

        read_expectations(expectations)
    options = {
        "impl": impl,
        "profile": profile,
        "schedules": ",".join(names(schedules)) or None,
        "requirements": ",".join(names(requirements)) or None,
        "ranks": ranks,
        "expectations": None if expectations is None else str(expectations),
        **{name.replace("_", "-"): _text(value) for name, value in others.items()},
    }
    with _claimed(out):
        if sys.stderr.isatty() and not quiet:
            say("starting: importing torch, then the implementation in a process of its own", err=True)
        from pipeconform.commands.engine import arguments, drive

        path = out / RESULT_NAME
        before = _stamp(path)
        ended = drive(
            arguments(
                options=options,
                out=out,
                keyword=keyword,
                workers=workers,
                exit_first=exit_first,
                live=not quiet and not as_json,
                others=pytest_args,
            )
        )
        written = path if _stamp(path) != before else None
        return _conclude(ended, written, show="json" if as_json else "verdict" if quiet else "summary")


def _text(value: Any) -> str | int | None:
    return value if isinstance(value, str | int) or value is None else str(value)


def _check(
    *, profile: str, requirements: tuple[str, ...], ranks: str, workers: str | None, others: tuple[str, ...]
) -> None:
    """Refuse wrong names at once: starting everything to say so would take seconds."""
    require_supported_torch()
    from pipeconform.spec import profile as find_profile
    from pipeconform.spec.selection import parse_ranks, require_requirement

    find_profile(profile)
    for name in requirements:
        require_requirement(name)
    parse_ranks(ranks)
    if workers is not None and not workers.isdigit() and workers not in ("auto", "logical"):
        raise UsageError(f"-n {workers}: expected a number of processes or auto")
    if others and not others[0].startswith("-"):
        raise UsageError(
            f"unexpected argument {others[0]!r}: name the implementation by --impl, and put what is for "
            f"pytest, options first, after --"
        )


@contextlib.contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Keep a folder for this run: two that write the same file would tell one another's results.

    Raises:
        BadResultError: it cannot be written, or another run writes there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise BadResultError(
            f"cannot write results to {out}: {error.strerror or error}; choose another --out"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadResultError(f"another run writes to {out} right now; choose another --out") from error
        except OSError:
            pass  # a file system without locks: nothing to be had
        yield


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells one writing of a file from another; an older run's result is not this one's."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _conclude(ended: Ended, written: Path | None, *, show: Show) -> int:
    """Print what was found and return the exit code.

    Raises:
        UsageError: names, arguments or the adapter were refused.
        NothingJudgedError: the run ended well but judged nothing.
        HarnessError: pytest or the suites failed, could not judge some cells, or the result could not be written.
    """
    if ended.gave_up:
        raise HarnessError(ended.gave_up)
    if ended.usage:
        raise UsageError("\n".join(ended.usage))
    cells: tuple[Cell, ...] = ()
    from pipeconform.report.result import as_json, read_result

    result = ended.result if ended.unwritten else None
    if written is not None and result is None:
        result = read_result(written)
    if result is not None:
        cells = result.cells
        if show == "json":
            say_json(as_json(result).decode(), nl=False)
        elif cells:
            _print_summary(result, ended.kept or written, quiet=show == "verdict")
        if cells and written is not None and not ended.unwritten:
            _write_report(result, written, tell=show == "summary")
    if ended.interrupted:
        kept = ended.unwritten or f"results so far in {written}" if cells else "nothing was judged yet"
        say(f"pipeconform: interrupted; {kept}", err=True)
        return INTERRUPTED
    if ended.unwritten:
        raise HarnessError(ended.unwritten)
    if ended.failures:
        raise HarnessError(_failures(ended.failures))
    if any(cell.status == "error" and not cell.violations for cell in cells):
        raise HarnessError("some cells could not be judged; see ERR above for the reason")
    if not any(cell.is_judged for cell in cells):
        raise NothingJudgedError("nothing was judged: widen --requirements, --schedules, --ranks or -k")
    problems = () if result is None or result.expectations is None else result.expectations.problems
    violated = bool(problems) or any(not v.expected for cell in cells for v in cell.violations)
    if ended.code > _FAILED and not (ended.code == _STOPPED and violated):
        raise HarnessError(f"pytest ended with code {ended.code}; run again with --debug")
    return int(violated)


def _write_report(result: Result, written: Path, *, tell: bool) -> None:
    """Write the page beside the result file; whatever goes wrong there costs the run nothing but the page."""
    from pipeconform.commands.report import PAGE_NAME, write_page

    page = written.with_name(PAGE_NAME)
    try:
        write_page([(result, written)], page)
    except Exception as error:
        with contextlib.suppress(OSError):
            page.unlink(missing_ok=True)  # an older run's would pass for this one's
        say(f"pipeconform: no {page}: {error}; the result file is complete", err=True)
    else:
        if not tell:
            return
        with contextlib.suppress(BrokenPipeError):  # a reader who left does not change the verdict
            say(f"report: {page}")


def _print_summary(result: Result, written: Path | None, *, quiet: bool) -> None:
    from pipeconform.report.console import SafeConsole
    from pipeconform.report.summary import render_summary, render_verdict

    console = SafeConsole(width=_width())
    with contextlib.suppress(SystemExit):  # rich's, when nobody reads the pipe any more
        if quiet:
            render_verdict(result, console)
        else:
            say()
            render_summary(result, console, where=written)


def _width() -> int | None:
    """None lets the terminal decide; a file or a log is wide enough for titles."""
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else _LOG_WIDTH


def _failures(texts: list[str]) -> str:
    """Errors of the suites themselves: how the first one ends, or all of it when that was asked for."""
    if texts[0].startswith("the harness failed"):
        return texts[0]
    if click.get_current_context().obj:
        return "the suites failed:\n" + "\n".join(texts)
    last = (texts[0].strip().splitlines() or [""])[-1].removeprefix("E").strip()
    return f"the suites failed: {last}; run again with --debug and report it, please"
