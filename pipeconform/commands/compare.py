"""``pipeconform compare OLD NEW``: the gate of continuous integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeconform.commands.options import device_options, impl_option
from pipeconform.commands.say import say, say_json
from pipeconform.errors import BadResultError
from pipeconform.report.location import RESULT_NAME

if TYPE_CHECKING:
    from pipeconform.report.result import Result

__all__ = ["compare"]

_FORMATS = ("text", "json", "markdown", "github")


@click.command(short_help="Say what changed between two results; fail if something got worse.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "style",
    type=click.Choice(_FORMATS),
    default="text",
    show_default=True,
    help="How to tell it; github writes annotations, and a summary where $GITHUB_STEP_SUMMARY is set.",
)
@impl_option(required=False)
@device_options
def compare(
    old: Path, new: Path, style: str, impl: str | None, device: str, backend: str, ranks_per_device: int
) -> int:
    """Say what changed from the result OLD to the result NEW.

    Exit code 1 if something got worse: a regression, a failure that was not judged before, a flaky verdict of a
    kind that OLD does not show, lost coverage. With --impl, the case of every regression and of every fix is
    executed again a few times; what does not come out the same each time is told as flaky.
    """
    from pipeconform.gate.comparison import compare as compare_results
    from pipeconform.gate.comparison_text import render_comparison

    before, after = _read(old), _read(new)
    comparison = compare_results(before, after)
    if impl is not None:
        from pipeconform.campaign.options import Options
        from pipeconform.execute.implementation import resolve
        from pipeconform.replication.settle import settle
        from pipeconform.supported import require_supported_torch

        require_supported_torch()
        resolve(impl)
        options = Options(
            implementation=impl, device=device, backend=backend, ranks_per_device=ranks_per_device
        )
        comparison = settle(comparison, before, after, options=options)
    text = render_comparison(comparison, style)
    (say_json if style == "json" else say)(text)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if style == "github" and summary:
        _append(Path(summary), render_comparison(comparison, "markdown"))
    return int(comparison.blocked)


def _read(path: Path) -> Result:
    from pipeconform.report.result import read_result

    return read_result(path / RESULT_NAME if path.is_dir() else path)


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise BadResultError(
            f"cannot write $GITHUB_STEP_SUMMARY, {path}: {error.strerror or error}"
        ) from error
