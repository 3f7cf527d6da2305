"""``pipeconform show FWD-1``: one requirement, level or profile in full."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.commands.levels import describe_level, describe_profile
from pipeconform.commands.say import say
from pipeconform.errors import UnknownNameError
from pipeconform.spec import STANDARD_VERSION, Requirement, certification_levels, profiles
from pipeconform.spec.precedence import PLAIN_TRAINING, PLAINEST_OF_WRAPPERS
from pipeconform.spec.wrappers import all_requirements, any_requirement, wrapper_capabilities

if TYPE_CHECKING:
    from pipeconform.judge.registry import Judgement

__all__ = ["describe_requirement", "show"]


@click.command(short_help="Print one requirement, level or profile in full.")
@click.argument("name", metavar="ID|LEVEL|PROFILE")
def show(name: str) -> None:
    """Print a requirement: its normative text, its rationale and what it is judged on.

    Given the name of a certification level or of a profile, print what that demands.
    """
    texts = list(_levels_and_profiles(name))
    if texts:
        say("\n\n".join(texts))
        return
    found = _requirement(name)  # before heavy imports: a wrong name is refused at once
    needs = wrapper_needs(found.id)
    if needs is not None:
        say(describe_requirement(found, None, rows=needs))
        return
    from pipeconform.judge.registry import JUDGEMENTS  # noqa: PLC0415 - loads the standard

    say(describe_requirement(found, JUDGEMENTS.get(found.id)))


def _levels_and_profiles(name: str) -> Iterator[str]:
    """Both, where a level and a profile share a name."""
    for level in certification_levels():
        if level.name == name.casefold():
            yield describe_level(level, version=STANDARD_VERSION)
    for profile in profiles():
        if profile.name == name.casefold():
            yield describe_profile(profile)


def _requirement(name: str) -> Requirement:
    known = {row.id for row in all_requirements()}
    if name.upper() in known:
        return any_requirement(name)
    known |= {level.name for level in certification_levels()} | {profile.name for profile in profiles()}
    raise UnknownNameError("requirement, level or profile", name, known)


def wrapper_needs(identifier: str) -> dict[str, str] | None:
    """What a wrapper must claim to be judged by a requirement, and on which cases; None if it is about pipelines."""
    needed = wrapper_capabilities().get(identifier)
    if needed is None:
        return None
    features = ", ".join(f"the feature '{feature}'" for feature in sorted(needed))
    return {
        "Needs": features or "nothing beyond what its cases need",
        "Judged on": "data-parallel wrappers: listed cases, and a search among their options",
        "Control": "none: a plain case has nothing to remove"
        if identifier == PLAINEST_OF_WRAPPERS
        else f"the same case {PLAIN_TRAINING}",
    }


def describe_requirement(
    requirement: Requirement,
    judgement: Judgement | None,
    *,
    rows: dict[str, str] | None = None,
    width: int = 88,
) -> str:
    """The requirement as text, wrapped to `width` columns; `rows` replace those made from `judgement`."""
    if rows is None:
        rows = {"Needs": _needs(judgement), "Judged on": _cases(judgement), "Control": _control(judgement)}
        rows |= {"After": text} if (text := _earlier(requirement.id)) else {}
    rows = {"Why": requirement.rationale, "Source": requirement.source, **rows}
    parts = [f"{requirement.id}  {requirement.title}  ({requirement.level})", ""]
    parts += textwrap.wrap(requirement.statement, width, initial_indent="  ", subsequent_indent="  ")
    if requirement.tolerates_errors:
        parts.append("  An error on every rank that takes part also meets it.")
    parts.append("")
    for name, text in rows.items():
        parts += textwrap.wrap(text, width, initial_indent=f"{name:<11}", subsequent_indent=" " * 11)
        if name == "Source":
            parts += [f"{'':<11}{link}" for link in requirement.links]
    return "\n".join(parts)


def _needs(judgement: Judgement | None) -> str:
    """What an implementation must claim for the requirement to be judged."""
    if judgement is None:
        return "a later version of pipeconform: this one does not judge it yet"
    needed = sorted(f"the feature '{feature}'" for feature in judgement.needs)
    if judgement.trains:
        needed.append("a schedule that trains")
    return ", ".join(needed) if needed else "nothing beyond what its cases need"


def _cases(judgement: Judgement | None) -> str:
    if judgement is None:
        return "no case"
    about = ", ".join(sorted(focus.value for focus in judgement.about))
    return about + ("; every case is executed three times" if judgement.repeats else "")


def _control(judgement: Judgement | None) -> str:
    """What a violation's case is like without what the requirement is about."""
    if judgement is None:
        return "no case"
    subjects = [SUBJECTS[focus] for focus in sorted(judgement.about)]
    words = [
        text for one in subjects for text in (one.control, *(further for further, _ in one.further)) if text
    ]
    there = dict.fromkeys(f"the same case {text}" for text in words)
    return ", or ".join(there) or f"none: {subjects[0].no_control}"


def _earlier(identifier: str) -> str:
    """The requirements that are accused instead of this one where they see the same in its case."""
    from pipeconform.judge.precedence import earlier_than  # noqa: PLC0415 - loads what judges

    names = ", ".join(earlier_than(identifier))
    return (
        f"{names}: where one of them is violated in the same case and explains it, this one is blocked"
        if names
        else ""
    )
