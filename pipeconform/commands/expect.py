"""``pipeconform expect update RESULT``: propose the expectations file from a result."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeconform.commands.say import say
from pipeconform.errors import UsageError
from pipeconform.report.location import DEFAULT_RESULT, RESULT_NAME

if TYPE_CHECKING:
    from pipeconform.gate.expectations import ExpectationsFile
    from pipeconform.report.result import Result

__all__ = ["expect"]

_FILE = Path("pipeconform-expectations.toml")


@click.group(short_help="Keep the file of expected failures in order.")
def expect() -> None:
    """Keep the file of expected failures in order; 'pipeconform run --expectations' holds a run against it."""


@expect.command(short_help="Propose the expectations file from a result.")
@click.argument("result", type=click.Path(path_type=Path), default=DEFAULT_RESULT)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    default=_FILE,
    show_default=True,
    help="The expectations file; what people wrote in it is kept.",
)
@click.option("--write", is_flag=True, help="Write it, and the cases beside it, instead of printing it.")
@click.option("--reason", default="", help="The reason of new entries.")
@click.option("--issue", default="", help="The issue's link of new entries.")
@click.option("--owner", default="", help="The owner of new entries.")
@click.option("--expires", metavar="DATE", help="The expiry date of new entries, such as 2027-01-31.")
def update(
    result: Path, file: Path, write: bool, reason: str, issue: str, owner: str, expires: str | None
) -> None:
    """Propose the file that would let RESULT pass: every failure it shows, and no other.

    Entries that nothing shows any more are dropped. Fields that only a person can fill are left empty, and an
    entry with an empty field is refused. Comments in the file are not kept.
    """
    from pipeconform.gate.proposal import propose, write_proposal

    proposal = propose(
        _result(result),
        _existing(file),
        reason=reason,
        issue=issue,
        owner=owner,
        expires=_date(expires),
    )
    for text in proposal.left_out:
        say(f"left out: {text}", err=True)
    if not write:
        say(proposal.text, nl=False)
        return
    write_proposal(proposal, file)
    entries = proposal.text.count("[[expect]]")
    say(f"wrote {file}: entries: {entries}, cases: {len(proposal.cases)}")


def _result(path: Path) -> Result:
    from pipeconform.report.result import read_result

    return read_result(path / RESULT_NAME if path.is_dir() else path)


def _existing(path: Path) -> ExpectationsFile | None:
    from pipeconform.gate.expectations import read_expectations

    return read_expectations(path) if path.exists() else None


def _date(text: str | None) -> datetime.date | None:
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--expires {text!r}: expected a date such as 2027-01-31") from error
