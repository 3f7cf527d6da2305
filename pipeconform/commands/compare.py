"""``pipeconform compare OLD NEW``: a gate for continuous integration."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from pipeconform.campaign.options import Options
from pipeconform.commands.for_ci import append_to_summary, origins_of
from pipeconform.commands.known import known_in, known_option
from pipeconform.commands.options import Where, device_options, impl_option
from pipeconform.commands.say import say, say_json, say_line
from pipeconform.execute.implementation import resolve
from pipeconform.gate.comparison import compare as compare_results
from pipeconform.gate.comparison_github import annotated
from pipeconform.gate.comparison_text import FORMATS, render_comparison
from pipeconform.report.causes import causes_of
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import read_result
from pipeconform.supported import require_supported_torch

__all__ = ["compare"]


@click.command(short_help="Show what changed between two results; fail if something got worse.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "style",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Output format; github writes annotations, and a job summary if $GITHUB_STEP_SUMMARY is set.",
)
@known_option
@impl_option(required=False)
@device_options
def compare(
    old: Path, new: Path, style: str, known_file: Path | None, impl: str | None, **devices: Unpack[Where]
) -> int:
    """Show what changed from the result OLD to the result NEW.

    Exit code 1 means that something got worse: a regression, a failure of something that was not judged before, a
    flaky verdict of a kind that OLD does not show, or lost coverage. What another violation blocks, or another
    requirement showed before with the same kind, place and factor, is no regression. With --impl, the case of every
    regression and of every fix is executed again a few times; if its verdict varies, it is reported as flaky.
    """
    known = known_in(known_file)
    before, after = read_result(old), read_result(new)
    files = [path / RESULT_NAME if path.is_dir() else path for path in (old, new)]
    comparison = compare_results(before, after, known=known, files=(files[0], files[1]))
    if impl is not None:
        require_supported_torch()
        resolve(impl)
        from pipeconform.campaign.settle import settle  # noqa: PLC0415 - imports torch

        comparison = settle(comparison, before, after, options=Options(implementation=impl, **devices))
    if style == "github":
        causes = causes_of(after, known=known)
        for line in annotated(comparison, causes=causes, origins=origins_of(after)):
            say_line(line)
        append_to_summary(render_comparison(comparison, "markdown"))
    else:
        (say_json if style == "json" else say)(render_comparison(comparison, style))
    return int(comparison.blocked)
