"""``pipeconform expect update RESULT``: propose an expectations file from a result."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from pipeconform.commands.naming import Group
from pipeconform.commands.say import say
from pipeconform.errors import BadExpectationsError, UsageError
from pipeconform.gate.expectations import (
    FILLED_BY_PEOPLE,
    Expectation,
    ExpectationsFile,
    is_link,
    read_expectations,
)
from pipeconform.gate.explaining import explained
from pipeconform.gate.filling import filled
from pipeconform.gate.proposal import Proposal, propose, write_proposal
from pipeconform.reading import file_text
from pipeconform.report.location import DEFAULT_RESULT
from pipeconform.report.result import read_result
from pipeconform.spec.selection import named_requirements

__all__ = ["expect"]

_FILE = Path("pipeconform-expectations.toml")

_file_option = click.option(
    "--file",
    type=click.Path(path_type=Path),
    default=_FILE,
    show_default=True,
    help="The expectations file; reasons, issues, owners and dates in it are kept.",
)


@click.group(cls=Group, short_help="Maintain the file of expected failures.")
def expect() -> None:
    """Maintain the file of expected failures, with which 'pipeconform run --expectations' compares a run."""


@expect.command(short_help="Propose an expectations file from a result.")
@click.argument("results", type=click.Path(path_type=Path), nargs=-1)
@_file_option
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

    New entries stand together by cause. A cause that is written up gives its reason and the link to its issue.

    Without RESULTS, the result of the last run is used. A failure that was flaky, or that only some of several results
    show, is expected to show by chance: its entry allows "passed" and "flaky", and says how often it showed.

    Entries whose failure no longer shows are dropped. Fields that only a person can fill in are left empty, and an
    entry with an empty field is refused. Comments in the file are not kept.
    """
    last, *others = map(read_result, results or (Path(DEFAULT_RESULT),))
    before = read_expectations(file, drafts=True) if file.exists() else None
    proposal = propose(
        last,
        before,
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
    written = read_expectations(file, drafts=True)
    say(f"wrote {file}: entries: {len(written.entries)}, cases: {len(proposal.cases)}")
    for entry in () if before is None else before.entries:
        if not any(_is_same(entry, one) for one in written.entries):
            say(f"dropped {entry.label}: {entry.requirement} {entry.told}, which no longer shows")
    for line in _incomplete(written):
        say(line)


@expect.command(short_help="Fill in reasons, issues, owners and expiry dates.")
@click.argument("requirements", metavar="[ID…]", nargs=-1)
@_file_option
@click.option("--cause", metavar="TEXT", help="Only entries whose cause contains this text.")
@click.option("--reason", help="The reason.")
@click.option("--issue", metavar="LINK", help="The link to an issue.")
@click.option("--owner", help="Who mends it.")
@click.option("--expires", metavar="DATE", help="The expiry date, such as 2027-01-31.")
@click.option("--again", is_flag=True, help="Fill in fields that have a value, too.")
def fill(
    requirements: tuple[str, ...],
    file: Path,
    cause: str | None,
    reason: str | None,
    issue: str | None,
    owner: str | None,
    expires: str | None,
    again: bool,
) -> None:
    """Fill in empty fields of the entries about these requirements or chapters, or of all entries.

    The file is changed in place, and its comments are kept.
    """
    given = {"reason": reason, "issue": issue, "owner": owner, "expires": _date(expires)}
    values = {name: value for name, value in given.items() if value not in (None, "")}
    if not values:
        raise UsageError("nothing to fill in: give --reason, --issue, --owner or --expires")
    if issue and not is_link(issue):
        raise UsageError(f"--issue {issue!r} is not a link; expected https://…")
    before = read_expectations(file, drafts=True)
    entries = _chosen(before, requirements, cause)
    text = file_text(file, error=BadExpectationsError)
    changed = filled(text, [entry.line for entry in entries], values, again=again)
    write_proposal(Proposal(text=changed, cases={}), file)
    say(f"filled in {_filled(entries, values, again=again)} of {file}")
    without = _without_entry(before, requirements)
    if without:
        say(f"no entry is about {', '.join(without)}")
    for line in _incomplete(read_expectations(file, drafts=True)):
        say(line)


@expect.command(short_help="Explain the entries about a requirement.")
@click.argument("requirements", metavar="ID…", nargs=-1, required=True)
@_file_option
@click.option(
    "--result",
    type=click.Path(path_type=Path),
    default=Path(DEFAULT_RESULT),
    show_default=True,
    help="A result, to say whether it shows the failure; none is needed.",
)
def explain(requirements: tuple[str, ...], file: Path, result: Path) -> None:
    """Explain the entries about these requirements or chapters: what is expected, why, until when, what to do next."""
    entries = _chosen(read_expectations(file, drafts=True), requirements, None)
    found = read_result(result) if result.exists() else None
    today = datetime.datetime.now(datetime.UTC).date()
    say("\n\n".join(explained(entry, today=today, result=found, where=result) for entry in entries))


def _chosen(
    file: ExpectationsFile, requirements: tuple[str, ...], cause: str | None
) -> tuple[Expectation, ...]:
    """The entries that are meant.

    Raises:
        UsageError: there is none.
    """
    wanted = named_requirements(requirements)
    entries = [entry for entry in file.entries if not requirements or entry.requirement in wanted]
    entries = [entry for entry in entries if cause is None or cause.casefold() in entry.cause.casefold()]
    if not entries:
        about = ", ".join(dict.fromkeys(entry.requirement for entry in file.entries)) or "nothing"
        raise UsageError(f"{file.name} has no such entry; it is about {about}")
    return tuple(entries)


def _is_same(entry: Expectation, other: Expectation) -> bool:
    """Whether two entries are about the same failure; schedules and cases may have changed since."""
    return (
        entry.requirement,
        entry.statuses,
        entry.signature,
        entry.device,
        entry.torch,
        entry.p,
        entry.v,
    ) == (other.requirement, other.statuses, other.signature, other.device, other.torch, other.p, other.v)


def _entries(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def _filled(entries: Sequence[Expectation], values: Iterable[str], *, again: bool) -> str:
    """In how many entries each field was filled in: ``owner: 6 entries; issue: 4 entries (2 keep theirs; …)``."""
    by_count: dict[int, list[str]] = {}
    for field in values:
        kept = 0 if again else sum(field not in entry.lacking for entry in entries)
        by_count.setdefault(kept, []).append(field)
    return "; ".join(
        f"{', '.join(fields)}: {_entries(len(entries) - kept)}"
        + (
            f" ({kept} {'keeps its own' if kept == 1 else 'keep their own'}; --again replaces)"
            if kept
            else ""
        )
        for kept, fields in by_count.items()
    )


def _without_entry(file: ExpectationsFile, requirements: Iterable[str]) -> list[str]:
    """Those of the requirements and chapters that no entry is about."""
    about = {entry.requirement for entry in file.entries}
    return [name for name in requirements if about.isdisjoint(named_requirements([name]))]


def _incomplete(file: ExpectationsFile) -> list[str]:
    """What people still have to fill in, with the command for the entry that lacks most."""
    left = [entry for entry in file.entries if entry.lacking]
    if not left:
        return []
    by_count: dict[int, list[str]] = {}
    for field in FILLED_BY_PEOPLE:
        number = sum(field in entry.lacking for entry in left)
        by_count.setdefault(number, []).append(field)
    words = "; ".join(
        f"{_entries(number)} {'lacks' if number == 1 else 'lack'} {', '.join(fields)}"
        for number, fields in by_count.items()
        if number
    )
    first = max(left, key=lambda entry: len(entry.lacking))
    options = " ".join(f"--{field} …" for field in first.lacking)
    return [f"{words}: pipeconform expect fill {first.requirement} {options}"]


def _date(text: str | None) -> datetime.date | None:
    if text is None:
        return None
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--expires {text!r}: expected a date such as 2027-01-31") from error
