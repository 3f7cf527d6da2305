"""What an implementation's claims lack for a level, as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeconform.spec import CertificationLevel, core_requirements, mandatory

if TYPE_CHECKING:
    from pipeconform.campaign.target import Target

__all__ = ["claimed_text", "refusal_text"]


def refusal_text(
    level: CertificationLevel, target: Target, reasons: Sequence[str], *, implementation: str
) -> str:
    """Why a level is refused before anything is run, and what would do."""
    from pipeconform.certificate.beforehand import num_to_claim, unclaimed  # noqa: PLC0415 - loads the standard

    more = num_to_claim(level, unclaimed(level, target))
    do = f"claim {more} more: " if more else ""
    return "\n".join(
        [
            f"NOT GRANTED: {target.name} {target.version} cannot be certified for level {level.title} with these "
            f"claims, so nothing was run",
            *(f"  {reason}" for reason in reasons),
            f"{do}'pipeconform claims {shlex.quote(implementation)} --level {level.name}' prints the lines to write",
        ]
    )


def claimed_text(level: CertificationLevel, without: Sequence[str], *, more: int) -> str:
    """How many of a level's requirements are claimed, and how many more have to be."""
    total = len(mandatory(level))
    core = [name for name in core_requirements(level) if name in without]
    text = f"{total - len(without)} of the {total} requirements of level {level.title}, which needs "
    text += f"{more} more" if more else "no more of them"
    return text + (f", {' and '.join(core)} among them" if core else "")
