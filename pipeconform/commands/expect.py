"""``pipeconform expect update RESULT``: propose an expectations file from a result."""

from __future__ import annotations

import datetime
from pathlib import Path

import click

from pipeconform.commands.naming import Group
from pipeconform.commands.say import say
from pipeconform.errors import UsageError
from pipeconform.gate.expectations import read_expectations
from pipeconform.gate.proposal import propose, write_proposal
from pipeconform.report.location import DEFAULT_RESULT
from pipeconform.report.result import read_result

__all__ = ["expect"]

_FILE = Path("pipeconform-expectations.toml")


@click.group(cls=Group, short_help="Maintain the file of expected failures.")
def expect() -> None:
    """Maintain the file of expected failures, with which 'pipeconform run --expectations' compares a run."""


@expect.command(short_help="Propose an expectations file from a result.")
@click.argument("results", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    default=_FILE,
    show_default=True,
    help="The expectations file; reasons, issues, owners and dates in it are kept.",
)
@click.option("--write", is_flag=True, help="Write the file and the cases beside it, instead of printing.")
@click.option("--reason", default="", help="The reason given in new entries.")
@click.option("--issue", default="", help="The link to an issue given in new entries.")
@click.option("--owner", default="", help="The owner given in new entries.")
@click.option("--expires", metavar="DATE", help="The expiry date given in new entries, such as 2027-01-31.")
def update(
    results: tuple[Path, ...],
    file: Path,
    write: bool,
    reason: str,
    issue: str,
    owner: str,
    expires: str | None,
) -> None:
    """Propose the expectations file that lets RESULTS pass: every failure that they show, and no other.

    Without RESULTS, the result of the last run is used. A failure that was flaky, or that only some of several results
    show, is expected to show by chance: its entry allows "passed" and "flaky", and says how often it showed.

    Entries whose failure no longer shows are dropped. Fields that only a person can fill in are left empty, and an
    entry with an empty field is refused. Comments in the file are not kept.
    """
    last, *others = map(read_result, results or (Path(DEFAULT_RESULT),))
    proposal = propose(
        last,
        read_expectations(file) if file.exists() else None,
        others=others,
        reason=reason,
        issue=issue,
        owner=owner,
        expires=_date(expires),
    )
    if not write:
        say(proposal.text, nl=False)
        return
    write_proposal(proposal, file)
    entries = proposal.text.count("[[expect]]")
    say(f"wrote {file}: entries: {entries}, cases: {len(proposal.cases)}")


def _date(text: str | None) -> datetime.date | None:
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--expires {text!r}: expected a date such as 2027-01-31") from error
