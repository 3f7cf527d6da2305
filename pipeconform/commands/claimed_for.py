"""What an implementation's claims lack for a level, as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeconform.report.levels_text import shares
from pipeconform.spec import CertificationLevel, core_requirements, mandatory, missing
from pipeconform.spec.levels import including

if TYPE_CHECKING:
    from pipeconform.campaign.target import Target

__all__ = ["claimed_text", "refusal_text"]


def refusal_text(
    level: CertificationLevel, target: Target, reasons: Sequence[str], *, implementation: str
) -> str:
    """Why a level is refused before anything is run, and what would do."""
    # loads the standard
    from pipeconform.certificate.beforehand import num_to_claim, reasons_in_claims, unclaimed  # noqa: PLC0415

    more = num_to_claim(level, unclaimed(level, target))
    do = f"claim {more} more: " if more else ""
    name = shlex.quote(implementation)
    higher = (one for one in including(level) if not missing(one) and not reasons_in_claims(one, target))
    above = next(higher, None)
    instead = (
        []
        if above is None
        else [
            f"these claims allow a higher level, 'pipeconform certify --impl {name} --level {above.name}': "
            f"{shares(level, above)}"
        ]
    )
    return "\n".join(
        [
            f"NOT GRANTED: {target.name} {target.version} cannot be certified for level {level.title} with these "
            f"claims, so nothing was run",
            *(f"  {reason}" for reason in reasons),
            *instead,
            f"{do}'pipeconform claims {name} --level {level.name}' prints the lines to write",
        ]
    )


def claimed_text(level: CertificationLevel, without: Sequence[str], *, more: int) -> str:
    """How many of a level's requirements are claimed, and how many more have to be."""
    total = len(mandatory(level))
    core = [name for name in core_requirements(level) if name in without]
    text = f"{total - len(without)} of the {total} requirements of level {level.title}, which needs "
    text += f"{more} more" if more else "no more of them"
    return text + (f", {' and '.join(core)} among them" if core else "")
