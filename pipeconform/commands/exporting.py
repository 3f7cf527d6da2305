"""``pipeconform replay --script``: write a stored case as a stand-alone program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeconform.commands.say import say
from pipeconform.errors import BadCaseError, UnknownNameError

if TYPE_CHECKING:
    from pipeconform.campaign.campaign import Campaign
    from pipeconform.campaign.options import Options
    from pipeconform.commands.stored import Stored
    from pipeconform.spec import Requirement

__all__ = ["export"]


def export(
    found: Stored,
    chosen: tuple[Requirement, ...],
    campaign: Campaign,
    *,
    options: Options,
    script: Path,
) -> int:
    """Write `script` and the archive beside it, print how to run it, and return exit code 0.

    Raises:
        UsageError: the adapter has no source, or the variant is not known.
        BadCaseError: a file cannot be written.
    """
    from pipeconform.export.question import Question
    from pipeconform.export.script import program_of

    target = campaign.target
    variants = {"default": {}, **target.variants}
    if found.variant not in variants:
        raise UnknownNameError("environment variant", found.variant, variants)
    question = Question(
        engine=f"{target.name} {target.version}",
        case=found.case,
        requirements=tuple(row.id for row in chosen),
        sought=found.sought,
        variant=found.variant,
        settings=dict(variants[found.variant]),
        device=options.device,
        backend=options.backend,
        ranks_per_device=options.ranks_per_device,
    )
    archive = script.with_suffix(".zip")
    written = program_of(
        question, implementation=options.implementation, found=found.words, archive=archive.name
    )
    for path, data in ((script, written.text.encode()), (archive, written.archive)):
        try:
            path.write_bytes(data)
        except OSError as error:
            raise BadCaseError(f"cannot write {path}: {error.strerror or error}") from error
    say(f"wrote {script} and {archive}; run it with: python {script}")
    return 0
