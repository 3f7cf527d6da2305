"""``pipeconform run``: judge an implementation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pipeconform.campaign.options import TIME_LIMIT, Options
from pipeconform.commands.agents import attach_from, attach_options
from pipeconform.commands.engine import arguments, drive
from pipeconform.commands.folders import claimed
from pipeconform.commands.known import known_in, known_option
from pipeconform.commands.options import device_options, impl_option, names, show_output_option
from pipeconform.commands.resuming import chosen_folder, opened, resumed, settings_of
from pipeconform.commands.say import say
from pipeconform.errors import UsageError
from pipeconform.execute.implementation import resolve
from pipeconform.gate.expectations import read_expectations
from pipeconform.report.location import DEFAULT_OUT, RESULT_NAME
from pipeconform.spec import profile as find_profile
from pipeconform.spec.selection import parse_ranks, require_requirement
from pipeconform.supported import require_supported_torch

__all__ = ["run"]


@click.command(short_help="Judge an implementation.")
@impl_option(required=False)
@click.option(
    "--profile",
    metavar="NAME",
    default="core",
    show_default=True,
    help="How much to do: smoke, core, full or exhaustive.",
)
@click.option(
    "--schedules", metavar="A,B", help="Judge only under these schedules.  [default: all that are claimed]"
)
@click.option(
    "--requirements",
    metavar="IDS",
    help="Judge only these requirements or chapters: FWD-1,TRN.  [default: all]",
)
@click.option(
    "--ranks",
    metavar="N|A-B",
    default="1-4",
    show_default=True,
    help="Numbers of pipeline ranks to draw cases for.",
)
@click.option(
    "-k", "keyword", metavar="EXPR", help="Judge only what matches this expression; passed on as pytest's -k."
)
@click.option(
    "--seed", metavar="N", type=int, default=0, show_default=True, help="The same seed draws the same cases."
)
@click.option(
    "--examples",
    metavar="N",
    type=click.IntRange(min=1, max=100_000),
    help="Cases per subject and schedule.  [default: from the profile]",
)
@click.option(
    "-n", "workers", metavar="WORKERS", help="Judge schedules in parallel in this many processes, or auto."
)
@click.option("-x", "exit_first", is_flag=True, help="Stop after the first requirement that is not met.")
@click.option(
    "--last-failed",
    "--lf",
    "last_failed",
    is_flag=True,
    help="Judge only what was not met in the run before with the same --out; all if everything was.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=DEFAULT_OUT,
    show_default=True,
    help="Folder for result.json, report.html and junit.xml.",
)
@click.option(
    "--coverage",
    is_flag=True,
    help="Measure which lines and branches of the implementation's packages the cases execute.",
)
@click.option(
    "--resume",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Go on with the run in this folder, which was ended; with --impl, begin one if there is none.",
)
@click.option("--verbose", "-v", is_flag=True, help="Also print why cells were skipped.")
@click.option("--quiet", "-q", is_flag=True, help="Print only the verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print only the result file, on standard output.")
@click.option(
    "--expectations",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File of known failures; any other failure, and any entry that does not hold, fails the run.",
)
@known_option
@click.option(
    "--github/--no-github",
    default=None,
    help="Annotate files and write the job's summary, as GitHub shows them.  [default: under GitHub Actions]",
)
@show_output_option
@device_options
@click.option(
    "--time-limit",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=TIME_LIMIT,
    show_default=True,
    help="Stop the ranks of a case after this time, if they are not found to be stuck before: see docs/clusters.md.",
)
@attach_options
@click.argument("pytest_args", metavar="[-- PYTEST_ARGS]", nargs=-1, type=click.UNPROCESSED)
def run(*, out: Path, resume: Path | None, **given: Any) -> int:
    """Judge an implementation: report which requirements it meets, and for each violation the smallest case found.

    Every requirement is judged under every schedule that the implementation claims. A data-parallel wrapper (torch-ddp,
    torch-fully-shard, torch-fsdp, reference-wrapper, or your own, see pipeconform.wrapper) has no schedules and is
    judged by chapter DPW. Arguments after -- are passed on to pytest, which runs the suite and loads no other plugins
    unless -- -p NAME names them.

    A run that was ended, however it was ended, goes on with --resume: what was judged is not judged again. The
    settings are those of the run; options that are given must be the same.
    """
    require_supported_torch()
    context = click.get_current_context()
    out = chosen_folder(context, out=out, resume=resume)
    if resume is not None:
        if given["coverage"]:
            raise UsageError(
                "--coverage with --resume would leave out what was executed before; take one of the two"
            )
        given = resumed(context, resume, given)
    if given["impl"] is None:
        raise click.MissingParameter(ctx=context, param=_parameter(context, "impl"))
    return _run(out=out, resume=resume is not None, **given)


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(one for one in context.command.params if one.name == name)


def _run(
    *,
    impl: str,
    profile: str,
    schedules: str | None,
    requirements: str | None,
    ranks: str,
    seed: int,
    examples: int | None,
    device: str,
    backend: str,
    ranks_per_device: int,
    time_limit: float,
    keyword: str | None,
    workers: str | None,
    exit_first: bool,
    last_failed: bool,
    out: Path,
    resume: bool,
    expectations: Path | None,
    known_file: Path | None,
    github: bool | None,
    coverage: bool,
    verbose: bool,
    quiet: bool,
    as_json: bool,
    show_output: bool,
    pytest_args: tuple[str, ...],
    **agents: Any,
) -> int:
    find_profile(profile)  # wrong names are refused before anything is started, which takes seconds
    for option, given in (("requirements", requirements), ("schedules", schedules)):
        if given is not None and not names(given):
            raise UsageError(f"--{option} {given!r} names none; leave the option out to judge all")
    for name in names(requirements):
        require_requirement(name)
    options = Options(
        implementation=impl,
        profile=profile,
        schedules=names(schedules),
        requirements=names(requirements),
        ranks=parse_ranks(ranks),
        seed=seed,
        examples=examples,
        device=device,
        backend=backend,
        ranks_per_device=ranks_per_device,
        time_limit=time_limit,
        attach=attach_from(**agents),
        show_output=show_output,
    )
    _check_workers(workers)
    _check_others(pytest_args)
    resolve(impl)
    if expectations is not None:
        read_expectations(expectations)
    known = known_in(known_file)
    settings = settings_of(
        {
            "impl": impl,
            "profile": profile,
            "schedules": schedules,
            "requirements": requirements,
            "ranks": ranks,
            "seed": seed,
            "examples": examples,
            "device": device,
            "backend": backend,
            "ranks_per_device": ranks_per_device,
            "time_limit": time_limit,
            "keyword": keyword,
            "last_failed": last_failed,
            "expectations": expectations,
            "pytest_args": pytest_args,
        }
    )
    with claimed(out):
        journal = opened(out, settings, resume=resume)
        if sys.stderr.isatty() and not quiet:
            say("starting: importing torch, then the implementation in a process of its own", err=True)
        path = out / RESULT_NAME
        before = _stamp(path)
        ended = drive(
            arguments(
                options,
                out=out,
                expectations=expectations,
                keyword=keyword,
                workers=workers,
                exit_first=exit_first,
                last_failed=last_failed
                and journal.planned() is None,  # what failed changes while a run judges
                coverage=coverage,
                live=not quiet and not as_json,
                journal=journal.folder,
                others=pytest_args,
            )
        )
        written = path if _stamp(path) != before else None
        journal.end(complete=ended.complete)
        from pipeconform.commands.conclusion import Show, conclude  # noqa: PLC0415 - no run need wait for this to begin
        from pipeconform.commands.for_ci import is_on_github  # noqa: PLC0415

        show: Show = "json" if as_json else "verdict" if quiet else "summary"
        return conclude(
            ended,
            written,
            show=show,
            known=known,
            verbose=verbose,
            github=is_on_github() if github is None else github,
            expectations=expectations,
        )


def _check_workers(workers: str | None) -> None:
    if workers is not None and not workers.isdigit() and workers not in ("auto", "logical"):
        raise UsageError(f"-n {workers}: expected a number of processes or auto")


def _check_others(others: tuple[str, ...]) -> None:
    if others and not others[0].startswith("-"):
        raise UsageError(
            f"unexpected argument {others[0]!r}: name the implementation with --impl, and put arguments for "
            f"pytest, options first, after --"
        )


def _stamp(path: Path) -> tuple[int, int] | None:
    """Identifies one version of a file, so that an older run's result is not taken for this one's."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
