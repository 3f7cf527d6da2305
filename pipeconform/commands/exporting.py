"""``pipeconform replay --script``: a stored case as a program of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeconform.commands.say import say
from pipeconform.errors import BadCaseError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from pipeconform.commands.replay import Stored

__all__ = ["export", "written"]


def export(found: Stored, *, impl: str, script: Path) -> int:
    """Write `script` and say how to run it; always 0.

    Raises:
        UsageError: no program of its own can show what was found, or its environment variant is not known.
        BadCaseError: the file cannot be written.
    """
    from pipeconform.campaign.options import Options
    from pipeconform.campaign.setup import campaign_of
    from pipeconform.export.script import Reproduction, script_of
    from pipeconform.judge.registry import JUDGEMENTS

    violation = found.violation
    if found.requirement is not None and found.requirement not in JUDGEMENTS:
        raise UsageError(
            f"{found.name} cannot be exported: {found.requirement} is not about cases of this kind"
        )
    if violation is not None and violation.status == "failed" and found.requirement is not None:
        judgement = JUDGEMENTS[found.requirement]
        if judgement.observe or judgement.repeats:
            raise UsageError(
                f"{found.name} cannot be exported: {found.requirement} is judged by what the harness sees inside "
                f"the stages, or by several executions; send the result file and the replay line instead"
            )
    size = found.pipeline.world.size
    with campaign_of(Options(implementation=impl, ranks=(size, size))) as campaign:
        description = campaign.executors["default"].description
    if found.variant != "default" and found.variant not in description.variants:
        raise UnknownNameError("environment variant", found.variant, ["default", *description.variants])
    text = script_of(
        Reproduction(
            name=found.name,
            case=found.pipeline,
            implementation=impl,
            engine=f"{description.name} {description.version}",
            found=found.words,
            single_process=description.capabilities.world == "single_process",
            settings=description.variants.get(found.variant, {}),
        )
    )
    written(text, script)
    return 0


def written(text: str, script: Path) -> None:
    """Write a program and say how to run it.

    Raises:
        BadCaseError: the file cannot be written.
    """
    try:
        script.write_text(text, "utf-8")
    except OSError as error:
        raise BadCaseError(f"cannot write {script}: {error.strerror or error}") from error
    say(f"wrote {script}; run it with: python {script}")
