"""``pipeconform show FWD-1``: requirements, levels, profiles, features or findings in full."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.claims import Claimable, Feature
from pipeconform.commands.levels import aligned, describe_level, describe_profile
from pipeconform.commands.say import say
from pipeconform.errors import UnknownNameError, UsageError
from pipeconform.schedule import families
from pipeconform.spec import STANDARD_VERSION, Chapter, Requirement, certification_levels, profiles
from pipeconform.spec.precedence import PLAIN_TRAINING, PLAINEST_OF_WRAPPERS
from pipeconform.spec.wrappers import all_chapters, all_requirements, any_requirement, wrapper_capabilities
from pipeconform.suggestions import nearest
from pipeconform.wrapper import WrapperFeature

if TYPE_CHECKING:
    from pipeconform.judge.registry import Judgement

__all__ = ["describe_chapter", "describe_feature", "describe_requirement", "show"]

_FEATURES: tuple[Claimable, ...] = (*Feature, *WrapperFeature)
_FINDING = ("finding", "findings")


@click.command(short_help="Print requirements, chapters, levels, profiles, features or findings in full.")
@click.argument("names", metavar="ID|CHAPTER|LEVEL|PROFILE|FEATURE|finding N…", nargs=-1, required=True)
def show(names: tuple[str, ...]) -> None:
    """Print a requirement: its normative text, its rationale, what it is judged on and how to claim that.

    Given a chapter, print its requirements; given the name of a certification level or of a profile, what that demands;
    given a feature, what it means, how it is claimed, and which requirements need it. "finding 3" is a finding that
    causes are known as. Several names are printed one after the other.
    """
    say("\n\n\n".join([_described(name) for name in _joined(names)]))  # nothing is printed if a name is wrong


def _joined(words: Sequence[str]) -> Iterator[str]:
    """The names in what was typed: ``finding`` and what follows it are one."""
    rest = iter(words)
    for word in rest:
        following = next(rest, "") if word.casefold() in _FINDING else ""
        yield f"{word} {following}".rstrip()


def _described(name: str) -> str:
    first, _, rest = name.partition(" ")
    if first.casefold() in _FINDING:
        from pipeconform.commands.findings import describe_finding, finding_named  # noqa: PLC0415 - reads all of them

        return describe_finding(finding_named(rest))
    texts = list(_named_otherwise(name))
    if texts:
        return "\n\n".join(texts)
    found = _requirement(name)  # before heavy imports: a wrong name is refused at once
    needs = wrapper_needs(found.id)
    if needs is not None:
        return describe_requirement(found, None, rows=needs)
    from pipeconform.judge.registry import JUDGEMENTS  # noqa: PLC0415 - loads the standard

    return describe_requirement(found, JUDGEMENTS.get(found.id))


def _named_otherwise(name: str) -> Iterator[str]:
    """What has this name and is no requirement; a level and a profile may share one."""
    for level in certification_levels():
        if level.name == name.casefold():
            yield describe_level(level, version=STANDARD_VERSION)
    for profile in profiles():
        if profile.name == name.casefold():
            yield describe_profile(profile)
    for chapter in all_chapters():
        if chapter.id == name.upper():
            yield describe_chapter(chapter)
    for feature in _FEATURES:
        if feature.value == name.casefold():
            yield describe_feature(feature)


def _requirement(name: str) -> Requirement:
    rows = {row.id for row in all_requirements()}
    if name.upper() in rows:
        return any_requirement(name)
    before, colon, _ = name.upper().partition(":")
    if colon and before in rows:
        raise UsageError(
            f"{name!r} names a violation; 'pipeconform replay {name} --impl …' executes its case again, and "
            f"'pipeconform show {before}' prints the requirement"
        )
    others = {one.name for one in certification_levels()} | {one.name for one in profiles()}
    others |= {one.id for one in all_chapters()}
    titles = {one.title: one.name for one in families()}
    known = rows | others | {feature.value for feature in _FEATURES}
    for like in nearest(name, titles.values(), titles)[:1] if not nearest(name, known) else ():
        raise UsageError(
            f"{name!r} is no requirement, but {like} is a family of schedules: 'pipeconform schedule list' describes "
            f"it, and 'pipeconform schedule draw --name {like} -p 4 -m 8' draws it"
        )
    raise UnknownNameError(
        "requirement, chapter, level, profile or feature", name, known, listed_by="pipeconform list"
    )


def wrapper_needs(identifier: str) -> dict[str, str] | None:
    """What a wrapper must claim to be judged by a requirement, and on which cases; None if it is about pipelines."""
    needed = wrapper_capabilities().get(identifier)
    if needed is None:
        return None
    features = ", ".join(f"the feature '{feature}'" for feature in sorted(needed))
    lines = ", ".join(f"WrapperFeature.{WrapperFeature(one).name}" for one in sorted(needed))
    return {
        "Needs": features or "nothing beyond what its cases need",
        **({"Claim": f"in WrapperClaims: features=frozenset({{…, {lines}}})"} if needed else {}),
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
        lines = _lines(judgement)
        rows = {
            "Needs": _needs(judgement, lines),
            "Claim": "\n".join(lines),
            "Judged on": _cases(judgement),
            "Control": _control(judgement),
        }
        rows |= {"After": text} if (text := _earlier(requirement.id)) else {}
    rows = {"Why": requirement.rationale, "Source": requirement.source, **rows}
    parts = [f"{requirement.id}  {requirement.title}  ({requirement.level})", ""]
    parts += textwrap.wrap(requirement.statement, width, initial_indent="  ", subsequent_indent="  ")
    if requirement.tolerates_errors:
        parts.append("  An error on every rank that takes part also meets it.")
    parts.append("")
    for name, text in rows.items():
        if name == "Claim":  # lines to copy
            labels = itertools.chain([name], itertools.repeat(""))
            parts += [f"{label:<11}{line}" for label, line in zip(labels, text.splitlines(), strict=False)]
            continue
        parts += textwrap.wrap(text, width, initial_indent=f"{name:<11}", subsequent_indent=" " * 11)
        if name == "Source":
            parts += [f"{'':<11}{link}" for link in requirement.links]
    return "\n".join(parts)


def _needs(judgement: Judgement | None, lines: Sequence[str]) -> str:
    """What an implementation must claim for the requirement to be judged."""
    if judgement is None:
        return "a later version of pipeconform: this one does not judge it yet"
    needed = sorted(f"the feature '{feature}'" for feature in judgement.needs)
    if judgement.trains:
        needed.append("a schedule that trains")
    unlisted = "claims that allow its cases" if lines else "nothing beyond what its cases need"
    return ", ".join(needed) or unlisted


def _lines(judgement: Judgement | None) -> tuple[str, ...]:
    """The lines that an adapter with the plainest claims would add to be judged by the requirement."""
    from pipeconform.judge.claiming import PLAINEST, additions_for, lines_of  # noqa: PLC0415 - loads what judges

    additions = None if judgement is None else additions_for(judgement, PLAINEST)
    return lines_of(additions or ())


def describe_chapter(chapter: Chapter) -> str:
    """A chapter: its requirements, one line each."""
    rows = aligned([[row.id, row.level.value, row.title] for row in chapter.requirements])
    kind = {"pipeline": "pipelines", "wrapper": "data-parallel wrappers"}[chapter.kind]
    return "\n".join(
        [
            f"chapter {chapter.id}  {chapter.title}  (of {kind})",
            "",
            *(f"  {row}" for row in rows),
            "",
            f"'pipeconform show {chapter.requirements[0].id}' prints one in full; "
            f"'pipeconform run --impl … --requirements {chapter.id}' judges by this chapter only",
        ]
    )


def describe_feature(feature: Claimable) -> str:
    """A feature: what it means, how it is claimed, and which requirements need it."""
    place = "WrapperClaims" if isinstance(feature, WrapperFeature) else "Capabilities"
    rows = aligned([[row.id, row.title] for row in _needing(feature)])
    return "\n".join(
        [
            f"feature {feature.value}",
            "",
            f"  {feature.meaning}",
            "",
            f"Claim      in {place}: features=frozenset({{…, {type(feature).__name__}.{feature.name}}})",
            *([f"Needed by  {rows[0]}", *(f"{'':<11}{row}" for row in rows[1:])] if rows else []),
        ]
    )


def _needing(feature: Claimable) -> Sequence[Requirement]:
    """The requirements that are not judged without a feature."""
    from pipeconform.judge.registry import JUDGEMENTS  # noqa: PLC0415 - loads the standard

    if isinstance(feature, WrapperFeature):
        needs = wrapper_capabilities()
        return [row for row in all_requirements() if feature in needs.get(row.id, ())]
    return [
        judgement.requirement
        for judgement in JUDGEMENTS.values()
        if feature in judgement.needs or all(feature in SUBJECTS[focus].needs for focus in judgement.wanted)
    ]


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
