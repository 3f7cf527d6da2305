"""``pipeconform replay --script``: write a stored case as a stand-alone program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeconform.commands.say import say
from pipeconform.errors import BadCaseError, UnknownNameError

if TYPE_CHECKING:
    from pipeconform.campaign.campaign import Campaign
    from pipeconform.campaign.options import Options
    from pipeconform.commands.stored import Stored
    from pipeconform.export.question import Question
    from pipeconform.spec import Requirement

__all__ = ["export"]

_TORCH = "pipeconform.adapters.torch_pipelining:TorchPipelining"
"""The adapter whose user would write what it does in the same few lines."""


def export(
    found: Stored,
    chosen: tuple[Requirement, ...],
    campaign: Campaign,
    *,
    options: Options,
    script: Path,
) -> int:
    """Write `script`, and the archive beside it if it needs one; print how to run it, and return exit code 0.

    A violation of torch's own pipelining is written as plain torch, without an archive, if that is possible.

    Raises:
        UsageError: the adapter has no source, or the variant is not known.
        BadCaseError: a file cannot be written.
    """
    from pipeconform.execute.implementation import resolve
    from pipeconform.export.plain.refusal import NotPlainError
    from pipeconform.export.plain.script import plain_program
    from pipeconform.export.question import Question

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
    if resolve(options.implementation) == _TORCH:
        try:
            text = plain_program(question, found=found.words)
        except NotPlainError as reason:
            say(f"not as plain torch: {reason}")
        else:
            _write({script: text.encode()})
            say(
                f"wrote {script}, {len(text.splitlines())} lines of plain torch; run it with: python {script}"
            )
            return 0
    return _carried(question, found, options=options, script=script)


def _carried(question: Question, found: Stored, *, options: Options, script: Path) -> int:
    """Write the adapter, and an archive with the judgement."""
    from pipeconform.export.script import program_of

    archive = script.with_suffix(".zip")
    written = program_of(
        question, implementation=options.implementation, found=found.words, archive=archive.name
    )
    _write({script: written.text.encode(), archive: written.archive})
    say(f"wrote {script} and {archive}; run it with: python {script}")
    return 0


def _write(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        try:
            path.write_bytes(data)
        except OSError as error:
            raise BadCaseError(f"cannot write {path}: {error.strerror or error}") from error
