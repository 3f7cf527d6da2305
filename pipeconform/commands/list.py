"""``pipeconform list``: the requirements, or what an implementation claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from pipeconform import spec
from pipeconform.adapter import BoundaryClaim, Description, ScheduleClaim
from pipeconform.commands.levels import aligned, list_changes, list_levels, list_profiles
from pipeconform.commands.options import impl_option
from pipeconform.commands.say import say
from pipeconform.errors import UsageError
from pipeconform.plural import plural
from pipeconform.spec import STANDARD_VERSION, Chapter, Requirement
from pipeconform.spec.wrappers import all_chapters, chapters_of, wrapper_capabilities
from pipeconform.wrapper import WrapperDescription

__all__ = ["list_", "list_requirements", "list_schedules"]


@click.command(name="list", short_help="List requirements, levels, or what an implementation claims.")
@click.option("--schedules", is_flag=True, help="List the schedules that --impl claims, with their limits.")
@click.option("--levels", is_flag=True, help="List the certification levels.")
@click.option("--profiles", is_flag=True, help="List the profiles of a run.")
@click.option("--changes", is_flag=True, help="List what each version of the standard changed.")
@impl_option(required=False)
def list_(schedules: bool, levels: bool, profiles: bool, changes: bool, impl: str | None) -> None:
    """List the requirements of the standard, its levels, or what an implementation claims.

    With --impl, each requirement is listed with the number of schedules under which it would be judged.
    """
    if schedules and impl is None:
        raise UsageError("list --schedules needs --impl REF: schedules are what an implementation claims")
    if schedules + levels + profiles + changes > 1:
        raise UsageError("list shows one thing at a time: --schedules, --levels, --profiles or --changes")
    if impl is not None and levels + profiles + changes:
        raise UsageError(
            "--impl says nothing about levels, profiles or changes of the standard; leave it out"
        )
    if levels or profiles or changes:
        say(_of_the_standard(levels=levels, profiles=profiles))
    else:
        say(_of_an_implementation(impl, schedules=schedules))


def _of_the_standard(*, levels: bool, profiles: bool) -> str:
    if levels:
        return list_levels(spec.certification_levels(), version=spec.STANDARD_VERSION)
    return list_profiles(spec.profiles()) if profiles else list_changes(spec.standard_versions())


def _of_an_implementation(impl: str | None, *, schedules: bool) -> str:
    """The requirements and where they would be judged, or the schedules that `impl` claims."""
    if impl is None:
        return list_requirements(all_chapters(), version=STANDARD_VERSION)
    from pipeconform.commands.describing import any_description_of  # noqa: PLC0415 - imports torch

    description = any_description_of(impl)
    if isinstance(description, WrapperDescription):
        if schedules:
            raise UsageError(
                f"{impl} is a data-parallel wrapper, which has no schedules; leave --schedules out"
            )
        return list_requirements(
            chapters_of("wrapper"), version=STANDARD_VERSION, judged=_judged_of_wrapper(description)
        )
    if schedules:
        return list_schedules(description)
    return list_requirements(
        chapters_of("pipeline"), version=STANDARD_VERSION, judged=_judged_under(description)
    )


def list_requirements(
    chapters: Sequence[Chapter], *, version: str, judged: Callable[[Requirement], str] | None = None
) -> str:
    """The requirements by chapter; `judged` adds a last column."""
    lines = []
    for chapter in chapters:
        lines.append(f"{chapter.id}  {chapter.title}")
        rows = [
            [row.id, row.level.value, row.title, *([judged(row)] if judged is not None else [])]
            for row in chapter.requirements
        ]
        lines += [f"  {line}" for line in aligned(rows)]
        lines.append("")
    count = sum(len(chapter.requirements) for chapter in chapters)
    lines.append(
        f"{plural(count, 'requirement')}, standard {version}; 'pipeconform show ID' prints one in full"
    )
    lines.append(
        "'pipeconform list --levels' and 'list --profiles' list those, 'pipeconform claims REF' features to claim"
    )
    return "\n".join(lines)


def list_schedules(description: Description) -> str:
    """The schedules an implementation claims, with their limits, and its features."""
    capabilities = description.capabilities
    rows = [["schedule", "ranks p", "stages per rank v", "microbatches m", "placement", "notes"]]
    rows += [_schedule_row(claim) for claim in capabilities.schedules]
    features = ", ".join(sorted(feature.value for feature in capabilities.features)) or "none"
    return "\n".join(
        [
            f"{description.name} {description.version}",
            "",
            *aligned(rows),
            "",
            f"features  {features}",
            f"boundary  {_boundary(capabilities.boundary)}",
        ]
    )


def _boundary(claim: BoundaryClaim) -> str:
    tensors = "1 tensor" if claim.max_tensors == 1 else f"up to {claim.max_tensors} tensors"
    inputs = "" if claim.inputs is None else f", {plural(claim.most_inputs, 'input')}"
    alike = "" if claim.differ else ", all boundaries alike"
    dtypes = ", ".join(claim.dtypes)
    return f"{tensors}{inputs}{alike}, {claim.min_ndim} to {claim.max_ndim} dimensions, {dtypes}"


def _judged_under(description: Description) -> Callable[[Requirement], str]:
    """Under how many of its schedules an implementation would be judged by a requirement."""
    from pipeconform.judge.registry import JUDGEMENTS  # noqa: PLC0415 - loads the standard

    capabilities = description.capabilities

    def judged(requirement: Requirement) -> str:
        judgement = JUDGEMENTS.get(requirement.id)
        if judgement is None:
            return "nothing judges it yet"
        claims = capabilities.schedules
        number = sum(bool(judgement.foci(claim, capabilities)) for claim in claims)
        if not number:
            return "not claimed"
        return f"under {number} of {len(claims)} schedule{'s' if len(claims) > 1 else ''}"

    return judged


def _judged_of_wrapper(description: WrapperDescription) -> Callable[[Requirement], str]:
    """Which features a wrapper would have to claim to be judged by a requirement."""
    needs = wrapper_capabilities()

    def judged(requirement: Requirement) -> str:
        lacking = needs[requirement.id] - set(map(str, description.claims.features))
        return f"not claimed: {', '.join(sorted(lacking))}" if lacking else "judged"

    return judged


def _schedule_row(claim: ScheduleClaim) -> list[str]:
    even = ", even" if claim.ranks_even else ""
    notes = [
        *([] if claim.trains else ["does not train"]),
        *([] if claim.evaluates else ["does not evaluate"]),
        *(["splits the backward"] if claim.split_backward else []),
        *([f"without {', '.join(sorted(one.value for one in claim.lacks))}"] if claim.lacks else []),
        *([f"across boundaries {_boundary(claim.boundary)}"] if claim.boundary else []),
    ]
    return [
        claim.name,
        f"{claim.min_ranks} to {claim.max_ranks}{even}",
        ", ".join(map(str, claim.stages_per_rank)),
        _microbatches(claim),
        claim.placement.value,
        ", ".join(notes),
    ]


def _microbatches(claim: ScheduleClaim) -> str:
    least = [
        *([str(claim.min_microbatches)] if claim.min_microbatches > 1 else []),
        *(_times(claim.min_microbatches_per_rank, "p")),
        *(_times(claim.min_microbatches_per_stage, "p·v")),
    ]
    rule = claim.microbatches.value.replace("_", " ")
    return ", ".join(
        [*(f"at least {text}" for text in least), *([rule] if rule != "any" or not least else [])]
    )


def _times(factor: int, unit: str) -> Iterable[str]:
    return [unit if factor == 1 else f"{factor}·{unit}"] if factor else []
