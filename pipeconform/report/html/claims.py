"""The implementation's claims in a result: which ranks own a stage, and which family a schedule belongs to.

Capabilities are free-form in a result file; values that cannot be read are treated as missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeconform.adapter import Placement, laid_out
from pipeconform.case.case import Case
from pipeconform.errors import UnknownNameError
from pipeconform.report.result import Implementation
from pipeconform.schedule.families import Family, family

__all__ = ["family_of", "owners_of"]

Owners = tuple[frozenset[int], ...]
"""For each stage, the pipeline ranks that own it."""


def _claim(implementation: Implementation, schedule: str) -> Mapping[str, Any]:
    capabilities = implementation.capabilities
    claims = capabilities.get("schedules") if isinstance(capabilities, dict) else None
    for claim in claims if isinstance(claims, list) else ():
        if isinstance(claim, dict) and claim.get("name") == schedule:
            return claim
    return {}


def owners_of(case: Case, implementation: Implementation) -> Owners:
    """The pipeline ranks that own each stage: as in the case, or else as claimed, or else in a loop."""
    placed = case.world.placement or _claim(implementation, case.schedule).get("placement")
    placement = Placement(placed) if placed in set(Placement) else Placement.LOOP
    return laid_out(placement, num_ranks=case.num_ranks, num_stages=case.num_stages)


def family_of(case: Case, implementation: Implementation) -> Family | None:
    """The schedule family that the implementation claims for the case's schedule; None if it claims none."""
    name = _claim(implementation, case.schedule).get("family")
    try:
        return family(name) if isinstance(name, str) else None
    except UnknownNameError:
        return None
