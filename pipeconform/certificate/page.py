"""The page of a certificate: what is certified, what the level demands, and what became of each requirement.

It is made from the contents of the package alone, so that `verify` can make it again. What a package could say wrongly
without being found out (times, the machine) is not on it.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeconform.certificate.badge import badge, badge_words
from pipeconform.certificate.contents import Contents
from pipeconform.certificate.engine import engine_text
from pipeconform.plural import plural
from pipeconform.report.cause_text import shown_as
from pipeconform.report.causes import Cause, causes_of
from pipeconform.report.causes.harm import WORDS as HARM
from pipeconform.report.finding_words import known_as
from pipeconform.report.result import Cell
from pipeconform.report.words import under
from pipeconform.showing import shown
from pipeconform.spec import (
    CertificationLevel,
    Requirement,
    certification_level,
    core_requirements,
    mandatory,
)
from pipeconform.spec.wrappers import chapters_of

__all__ = ["certificate_page"]

_PACKAGE = "pipeconform.certificate"
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_MANY = 4  # schedules, of which more are counted and not named
_CLASSES = {"passed": "met", "not_claimed": "open", "skipped": "open"}
_WORDS = {"passed": "met", "not_claimed": "not claimed", "nothing_compared": "nothing compared"}


@dataclass(frozen=True, kw_only=True)
class RowView:
    """One requirement of the level, and what became of it."""

    requirement: Requirement
    core: bool
    """Whether it cannot be left unclaimed."""
    outcomes: tuple[tuple[str, str], ...]
    """A class for the style, and words such as ``met under GPipe, 1F1B``."""


@dataclass(frozen=True, kw_only=True)
class ChapterView:
    """The requirements of the level in one chapter."""

    id: str
    title: str
    rows: tuple[RowView, ...]


@dataclass(frozen=True, kw_only=True)
class CauseView:
    """What is behind one or more violations."""

    requirement: str
    title: str
    words: str
    linked: bool
    """Whether the requirement is on this page."""


def certificate_page(contents: Contents) -> bytes:
    """The page as HTML: one file that loads nothing.

    Raises:
        UnknownNameError: there is no such level.
    """
    certificate = contents.certificate
    level = certification_level(certificate.level)
    chapters = tuple(_chapters(level, contents.result.cells))
    picture = base64.b64encode(badge(certificate)).decode()
    text = (
        _environment()
        .get_template("certificate.html")
        .render(
            policy=_POLICY,
            style=_style(),
            name=f"{certificate.implementation} {certificate.version}",
            level=level,
            certificate=certificate,
            sentence=badge_words(certificate)[1],
            badge=f"data:image/svg+xml;base64,{picture}",
            causes=tuple(
                _causes(contents, {row.requirement.id for chapter in chapters for row in chapter.rows})
            ),
            counts=tuple(_counts(chapters)),
            facts=tuple(_facts(contents)),
            chapters=chapters,
        )
    )
    return text.encode("utf-8", "backslashreplace")


@functools.cache
def _environment() -> Environment:
    """Jinja with our template; text is escaped, and control characters are shown."""
    return Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )


def _style() -> Markup:
    style = resources.files(_PACKAGE).joinpath("templates", "certificate.css")
    return Markup(style.read_text("utf-8"))  # noqa: S704 - our own file


def _chapters(level: CertificationLevel, cells: Sequence[Cell]) -> Iterator[ChapterView]:
    wanted = {row.id for row in mandatory(level)}
    core = set(core_requirements(level))
    by_requirement: dict[str, list[Cell]] = {}
    for cell in cells:
        by_requirement.setdefault(cell.requirement, []).append(cell)
    for chapter in chapters_of(level.kind):
        rows = tuple(
            RowView(
                requirement=row,
                core=row.id in core,
                outcomes=tuple(_outcomes(by_requirement.get(row.id, []))),
            )
            for row in chapter.requirements
            if row.id in wanted
        )
        if rows:
            yield ChapterView(id=chapter.id, title=chapter.title, rows=rows)


def _outcomes(cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """What became of a requirement, by status, in the order of the schedules."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        found.setdefault(cell.status, []).append(cell.schedule)
    for status, schedules in found.items():
        columns = tuple(dict.fromkeys(schedules))
        places = under(*columns)
        if len(found) == 1:
            everywhere = f" under all {len(columns)} schedules" if len(columns) > _MANY else places
            places = "" if status == "not_claimed" else everywhere
        yield _CLASSES.get(status, "wrong"), _WORDS.get(status, status.replace("_", " ")) + places
    if not found:
        yield "open", "not judged here"


def _counts(chapters: Sequence[ChapterView]) -> Iterator[str]:
    """How many requirements are met, violated and open."""
    classes = [
        "wrong" if "wrong" in kinds else "met" if "met" in kinds else "open"
        for chapter in chapters
        for row in chapter.rows
        for kinds in [{kind for kind, _ in row.outcomes}]
    ]
    words = {"met": "met", "wrong": "not met", "open": "not claimed, or not judged here"}
    yield plural(len(classes), "requirement")
    yield from (f"{classes.count(kind)} {said}" for kind, said in words.items() if kind in classes)


def _causes(contents: Contents, ids: set[str]) -> Iterator[CauseView]:
    for cause in causes_of(contents.result):
        yield CauseView(
            requirement=cause.requirement,
            title=cause.title,
            words=_cause_words(cause),
            linked=cause.requirement in ids,
        )


def _cause_words(cause: Cause) -> str:
    known = "".join(f"; {known_as(one)}" for one in cause.known[:1])
    return f"{HARM[cause.harm]}: {shown_as(cause)}{cause.under()}{known}"


def _facts(contents: Contents) -> Iterator[tuple[str, str]]:
    """Names and values that say what was judged, and by what."""
    certificate, result = contents.certificate, contents.result
    caught = sum(one.detected for one in contents.canaries)
    yield "Implementation", f"{certificate.implementation} {certificate.version}"
    yield "Adapter", f"{certificate.reference}, SHA-256 {certificate.source_digest}"
    yield "Engine", engine_text(certificate.engine)
    if certificate.built_on:
        yield "Built on", certificate.built_on
    if result.implementation.kind == "pipeline":
        yield "Schedules", ", ".join(result.run.schedules)
    for claim in certificate.weakening:
        yield "Claim that weakens the judgement", claim
    yield "Standard", f"{certificate.standard_version}, level {certificate.level}"
    yield "Made", certificate.created.replace("T", " ").replace("+00:00", " UTC")
    yield "Made with", f"pipeconform {certificate.product_version}, torch {result.environment.torch}"
    ranks = f"{plural(len(contents.cases), 'case')} on up to {plural(result.run.max_ranks, 'rank')}"
    yield "Judged", f"{ranks}, drawn from seed {certificate.seed}"
    yield "Canaries", f"{caught} of {plural(len(contents.canaries), 'wrong implementation')} detected"
    if certificate.shards > 1:
        yield (
            "Shards",
            f"{certificate.shards}"
            + (", in different environments" if certificate.mixed_environments else ""),
        )
    yield "Run", ", ".join(certificate.run_ids)
