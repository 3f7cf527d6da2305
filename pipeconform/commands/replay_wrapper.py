"""``pipeconform replay`` of a data-parallel wrapper's case, and the same as a program of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeconform.commands.say import say
from pipeconform.errors import NothingJudgedError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pipeconform.campaign.options import Options
    from pipeconform.case.wrapper_case import WrapperCase
    from pipeconform.commands.replay import Stored
    from pipeconform.replication.campaign import WrapperCampaign
    from pipeconform.spec import Requirement

__all__ = ["export_wrapper", "replay_wrapper"]


def replay_wrapper(found: Stored, case: WrapperCase, *, requirement: str | None, options: Options) -> int:
    """Execute the case once more, print what it shows and return the exit code.

    Raises:
        UsageError: the implementation is no wrapper, or `requirement` says nothing about the case.
        NothingJudgedError: no requirement says anything about it.
        HarnessError: the harness failed.
    """
    from pipeconform.commands.replay import heading, verdict
    from pipeconform.replication.setup import wrapper_campaign_of

    with wrapper_campaign_of(options) as campaign:
        chosen = _requirements(found, case, requirement, campaign)
        say(heading(found, campaign.description, chosen))
        vector = campaign.execute(case)
        outcomes = {row.id: campaign.outcomes(row.id, case, vector) for row in chosen}
    text, code = verdict(found, outcomes)
    say(text)
    return code


def export_wrapper(
    found: Stored, case: WrapperCase, *, requirement: str | None, options: Options, script: Path
) -> int:
    """Write the case as a program of its own; always 0.

    Raises:
        UsageError: as `replay_wrapper`, or the adapter has no source.
        NothingJudgedError: no requirement says anything about it.
        BadCaseError: the file cannot be written.
        HarnessError: the harness failed.
    """
    from pipeconform.commands.exporting import written
    from pipeconform.replication.export.script import WrapperReproduction, wrapper_script_of
    from pipeconform.replication.setup import wrapper_campaign_of

    with wrapper_campaign_of(options) as campaign:
        chosen, description = _requirements(found, case, requirement, campaign), campaign.description
    text = wrapper_script_of(
        WrapperReproduction(
            case=case,
            implementation=options.implementation,
            wrapper=f"{description.name} {description.version}",
            found=found.words,
            requirements=tuple(row.id for row in chosen),
        )
    )
    written(text, script)
    return 0


def _requirements(
    found: Stored, case: WrapperCase, asked: str | None, campaign: WrapperCampaign
) -> tuple[Requirement, ...]:
    """The one asked for, or that the violation is of, or else all that speak of such cases."""
    from pipeconform.replication.drawing import is_about
    from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
    from pipeconform.spec.wrappers import wrapper_chapter, wrapper_requirement

    asked = asked or found.requirement
    wanted = wrapper_chapter().requirements if asked is None else (wrapper_requirement(asked),)

    def speaks(row: Requirement) -> bool:
        listed = WRAPPER_JUDGEMENTS[row.id].drawn(campaign.description.claims, seed=0)
        return bool(listed) and is_about(case, listed)

    chosen = tuple(row for row in wanted if speaks(row))
    if chosen:
        return chosen
    if asked is not None:
        raise UsageError(
            f"{wanted[0].id} says nothing about this case, or {campaign.description.name} does not claim what it "
            f"needs; leave --requirement out to judge the case by all that do"
        )
    raise NothingJudgedError("no requirement says anything about this case")
