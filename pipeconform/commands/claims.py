"""``pipeconform claims my_adapter.py:MyAdapter``: what an adapter could claim next, and the line to write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from pipeconform.adapter import Description
from pipeconform.commands.claimed_for import claimed_text
from pipeconform.commands.levels import aligned
from pipeconform.commands.options import impl_option
from pipeconform.commands.say import say
from pipeconform.errors import UsageError
from pipeconform.spec import Requirement, certification_level, mandatory
from pipeconform.spec.catalogue import requirements_of
from pipeconform.spec.wrappers import wrapper_capabilities
from pipeconform.wrapper import WrapperDescription, WrapperFeature

if TYPE_CHECKING:
    from pipeconform.judge.claiming import Addition

__all__ = ["Missing", "claims", "describe_missing", "missing_claims"]

Missing = tuple[Requirement, Sequence["Addition"] | None]
"""A requirement that is not claimed, and what to claim for it; None if there is no short answer."""


@click.command(short_help="List what an adapter could claim next, with the line to write.")
@click.argument("implementation", metavar="[REF]", required=False)
@impl_option(required=False)
@click.option(
    "--level", metavar="NAME", help="List only what this level demands; see 'pipeconform list --levels'."
)
def claims(implementation: str | None, impl: str | None, level: str | None) -> None:
    """List the requirements that an adapter does not claim, and for each what to claim, with the line to write.

    REF is an implementation as for 'run --impl': my_adapter.py:MyAdapter, package.module:Object or a built-in name.
    Nothing is judged. What needs the fewest lines comes first. Where several claims would do, one is shown.
    With --level, the first line says how many of the level's requirements have to be claimed in addition.
    """
    if (implementation is None) == (impl is None):
        raise UsageError("name one implementation: pipeconform claims my_adapter.py:MyAdapter")
    wanted = None if level is None else certification_level(level)
    demanded = None if wanted is None else frozenset(row.id for row in mandatory(wanted))
    from pipeconform.commands.describing import any_description_of  # noqa: PLC0415 - imports torch

    description = any_description_of(implementation or impl or "")
    kind = "wrapper" if isinstance(description, WrapperDescription) else "pipeline"
    if wanted is not None and wanted.kind != kind:
        raise UsageError(f"level {wanted.title} is granted to a {wanted.kind}, and this is a {kind}")
    missing = tuple(one for one in missing_claims(description) if demanded is None or one[0].id in demanded)
    claimed = ""
    if wanted is not None:
        from pipeconform.certificate.beforehand import num_to_claim  # noqa: PLC0415 - loads the standard

        without = tuple(row.id for row, _ in missing)
        claimed = claimed_text(wanted, without, more=num_to_claim(wanted, without))
    title = f"{description.name} {description.version}"
    say(describe_missing(missing, title=title, total=len(requirements_of(kind)), claimed=claimed))


def missing_claims(description: Description | WrapperDescription) -> tuple[Missing, ...]:
    """The requirements under none of whose conditions the implementation is judged, in the order of the standard."""
    from pipeconform.judge.claiming import additions_for, wrapper_addition  # noqa: PLC0415 - loads the standard
    from pipeconform.judge.registry import JUDGEMENTS  # noqa: PLC0415 - loads the standard

    if isinstance(description, WrapperDescription):
        claimed, needs = set(map(str, description.claims.features)), wrapper_capabilities()
        found: list[Missing] = [
            (row, [wrapper_addition(WrapperFeature(one)) for one in sorted(needs[row.id] - claimed)])
            for row in requirements_of("wrapper")
        ]
    else:
        found = [
            (row, additions_for(JUDGEMENTS[row.id], description.capabilities, description.errors))
            for row in requirements_of("pipeline")
        ]
    return tuple((row, additions) for row, additions in found if additions is None or additions)


def describe_missing(missing: Sequence[Missing], *, title: str, total: int, claimed: str = "") -> str:
    """The requirements by what is to be claimed for them: first what is claimed by one line, then what takes more.

    `claimed` says how many are claimed; by default, how many of `total`.
    """
    from pipeconform.judge.claiming import lines_of  # noqa: PLC0415 - loads the standard

    head = f"{title} claims {claimed or f'{total - len(missing)} of {total} requirements'}"
    if not missing:
        return f"{head}; there is nothing to add"
    groups: dict[tuple[str, ...], list[Missing]] = {}
    for one in missing:
        groups.setdefault(() if one[1] is None else lines_of(one[1]), []).append(one)
    known = sorted((lines for lines in groups if lines), key=lambda lines: (len(lines), -len(groups[lines])))
    parts = [f"{head}. What to claim for the others, in describe():"]
    for lines in known:
        meanings = _meanings(one for _, additions in groups[lines][:1] for one in additions or ())
        rows = aligned([[row.id, row.title] for row, _ in groups[lines]])
        parts.append(
            "\n".join([*lines, *(f"  {text}" for text in meanings), *(f"    {row}" for row in rows)])
        )
    if () in groups:
        rows = aligned([[row.id, row.title] for row, _ in groups[()]])
        parts.append("\n".join(["for engines of another kind", *(f"    {row}" for row in rows)]))
    parts.append("'pipeconform show ID' prints what a requirement demands")
    return "\n\n".join(parts)


def _meanings(additions: Iterable[Addition]) -> list[str]:
    return [f"{one.text}: {one.meaning}" for one in additions if one.meaning]
