"""``run --resume``: the settings of a run that was ended, which the run that goes on must share."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

import pipeconform
from pipeconform.commands.options import names
from pipeconform.commands.say import say
from pipeconform.errors import BadResultError, UsageError
from pipeconform.plural import plural
from pipeconform.session.journal import Journal
from pipeconform.spec import STANDARD_VERSION, rule_digest
from pipeconform.spec.selection import parse_ranks
from pipeconform.spec.wrappers import all_requirements

__all__ = ["Settings", "chosen_folder", "opened", "resumed", "settings_of"]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was asked for, as far as it decides which cells are judged and on which cases.

    Numbers of processes, agents and what is printed may change from one part of a run to the next.
    """

    impl: str
    profile: str
    schedules: tuple[str, ...]
    requirements: tuple[str, ...]
    ranks: tuple[int, int]
    seed: int
    examples: int | None
    device: str
    backend: str
    ranks_per_device: int
    time_limit: float
    keyword: str | None
    last_failed: bool
    expectations: str | None
    expected: str
    """A digest of the expectations file; empty without one."""
    pytest_args: tuple[str, ...]
    product: str
    standard: str
    """The standard's version and a digest of its rules."""


_OPTIONS = {
    "ranks_per_device": "--ranks-per-device",
    "time_limit": "--time-limit",
    "keyword": "-k",
    "last_failed": "--last-failed",
    "pytest_args": "the arguments after --",
}
"""What a parameter is called on the command line, if not like the parameter."""


def settings_of(given: dict[str, Any]) -> Settings:
    """The settings that parameters of ``pipeconform run`` describe.

    Raises:
        UsageError: a value is impossible.
    """
    rules = hashlib.sha256("".join(rule_digest(row) for row in all_requirements()).encode()).hexdigest()
    file: Path | None = given["expectations"]
    return Settings(
        **{
            **{name: value for name, value in given.items() if name in Settings.__struct_fields__},
            "schedules": names(given["schedules"]),
            "requirements": names(given["requirements"]),
            "ranks": parse_ranks(given["ranks"]),
            "expectations": None if file is None else str(file),
            "expected": "" if file is None else _digest(file),
            "product": pipeconform.__version__,
            "standard": f"{STANDARD_VERSION} {rules[:12]}",
        }
    )


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def chosen_folder(context: click.Context, *, out: Path, resume: Path | None) -> Path:
    """The folder of the run.

    Raises:
        UsageError: ``--out`` names another one than ``--resume``.
    """
    if resume is None:
        return out
    if context.get_parameter_source("out") is not ParameterSource.DEFAULT and out != resume:
        raise UsageError(f"--resume {resume} writes to that folder; leave --out {out} out")
    return resume


def resumed(context: click.Context, resume: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the run in the folder `resume`; `given` unchanged if there is none yet and it names one.

    Raises:
        UsageError: there is no run in the folder, or a parameter on the command line differs.
    """
    journal = Journal.of(resume)
    settings = journal.settings(Settings)
    if settings is None:
        if given["impl"] is None:
            raise UsageError(
                f"no run to resume in {resume}; with --impl and the other options, --resume begins one there"
            )
        return given
    _require_same(context, settings, given, resume=resume)
    path = settings.expectations
    return {
        **given,
        **{name: getattr(settings, name) for name in given if name in Settings.__struct_fields__},
        "schedules": ",".join(settings.schedules) or None,
        "requirements": ",".join(settings.requirements) or None,
        "ranks": "{}-{}".format(*settings.ranks),
        "expectations": None if path is None else Path(path),
    }


def _require_same(context: click.Context, settings: Settings, given: dict[str, Any], *, resume: Path) -> None:
    typed = {
        name
        for name in given
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None) and given[name] != ()
    }
    path = settings.expectations
    now = settings_of(
        {
            **given,
            "impl": given["impl"] or settings.impl,
            "expectations": given["expectations"] or (None if path is None else Path(path)),
        }
    )
    always = {"product", "standard", "expected"}
    words = {"product": "pipeconform", "standard": "the standard", "expected": "the file of --expectations"}
    different = [
        f"{words.get(name) or _OPTIONS.get(name, f'--{name}')} {_text(getattr(now, name))} instead of "
        f"{_text(getattr(settings, name))}"
        for name in Settings.__struct_fields__
        if name in typed | always and getattr(now, name) != getattr(settings, name)
    ]
    if different:
        raise UsageError(
            f"the run in {resume} was begun with other settings: {'; '.join(different)}; a resumed run needs the "
            f"same, and takes them from the folder when they are left out"
        )


def _text(value: object) -> str:
    match value:
        case tuple():
            return (
                "-".join(map(str, value))
                if value and isinstance(value[0], int)
                else ",".join(value) or "none"
            )
        case None:
            return "none"
        case str() if len(value) == 64:
            return value[:8]
    return str(value)


def opened(out: Path, settings: Settings, *, resume: bool) -> Journal:
    """The journal of a run that begins or goes on in a folder that is locked for it.

    A run that begins where no journal can be written is judged without one, and says so.

    Raises:
        BadResultError: a run goes on, and its folder cannot be written to.
    """
    journal = Journal.of(out)
    if not resume or journal.settings(Settings) is None:
        try:
            journal.begin(settings)
        except BadResultError as error:
            say(f"pipeconform: {error}; if this run is ended, it cannot be resumed", err=True)
        return journal
    judged = len(journal.entries())
    planned = journal.planned()
    of = "" if planned is None else f" of {plural(len(planned), 'cell')}"
    say(f"pipeconform: resuming the run in {out}: {judged}{of} judged before", err=True)
    journal.resume()
    return journal
