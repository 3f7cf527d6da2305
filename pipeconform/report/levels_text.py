"""Where a result stands to the certification levels, and what somebody whose run is green does next, as text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence

from pipeconform.report.causes import Cause
from pipeconform.report.result import Result
from pipeconform.report.standing import LevelStanding, level_standings, standings
from pipeconform.spec import CertificationLevel, certification_level, core_requirements, mandatory
from pipeconform.spec.levels import including

__all__ = ["level_lines", "next_lines", "shares"]


def level_lines(result: Result, *, causes: Sequence[Cause]) -> tuple[str, ...]:
    """For which levels the run found the implementation conformant, and why not for the others.

    Empty if only some requirements or schedules were to be judged. `causes` are those of the result.
    """
    if not _is_whole(result):
        return ()
    levels = level_standings(result, standings(result, causes=causes))
    met = ", ".join(one.title for one in levels if one.state == "met") or "no level"
    others = "; ".join(f"{one.title}: {_why(one)}" for one in levels if one.state != "met")
    return (
        f"conformant, by what this run judged, for {met}",
        *([f"  {others}"] if others else []),
        *(f"  {text}" for text in _met_above(levels)),
    )


def shares(level: CertificationLevel, above: CertificationLevel) -> str:
    """Why `above`, which includes `level`, may be met by claims that are too few for `level`."""
    own, all_ = len(mandatory(level)), len(mandatory(above))
    return (
        f"level {above.title} includes level {level.title}, but lets {math.floor(above.not_claimed * all_)} of all its "
        f"{all_} requirements be unclaimed, where {level.title} lets {math.floor(level.not_claimed * own)} of its {own}"
    )


def _met_above(levels: Sequence[LevelStanding]) -> Iterator[str]:
    """For each level that is not met for want of claims, the first level above it that is met all the same."""
    met = {one.name for one in levels if one.state == "met"}
    for one in levels:
        level = certification_level(one.name)
        above = next((higher for higher in including(level) if higher.name in met), None)
        if one.state == "not_claimed" and above is not None:
            yield shares(level, above)


def next_lines(result: Result, *, causes: Sequence[Cause]) -> Iterator[str]:
    """What to do after a run in which nothing is violated, as commands; nothing after any other run."""
    broken = any(cell.is_broken for cell in result.cells)
    judged = any(cell.is_judged for cell in result.cells)
    outdated = result.expectations is not None and result.expectations.problems
    if causes or broken or outdated or not judged or not result.run.complete:
        return
    name = shlex.quote(result.implementation.reference)
    if not _is_whole(result):
        profile = result.run.profile
        yield f"next: pipeconform run --impl {name} --profile {profile}, which judges all that {profile} has"
        return
    levels = level_standings(result, standings(result, causes=causes))
    met = [one for one in levels if one.state == "met"]
    unclaimed = next((one for one in levels if one.state == "not_claimed"), None)
    if met:
        yield f"next: pipeconform certify --impl {name} --level {met[-1].name}"
    if unclaimed is not None:
        yield f"next: pipeconform claims {name} --level {unclaimed.name}"


def _is_whole(result: Result) -> bool:
    """Whether every requirement was to be judged under every schedule that is claimed."""
    return result.run.unrestricted and not result.run.selection


def _why(level: LevelStanding) -> str:
    number = len(level.in_the_way)
    match level.state:
        case "not_claimed":
            one = certification_level(level.name)
            core = [name for name in core_requirements(one) if name in level.in_the_way]
            if core:
                return f"{', '.join(core)} not claimed"
            return (
                f"{number} of {level.total} not claimed, at most {math.floor(one.not_claimed * level.total)}"
            )
        case "unjudged":
            return f"{number} not judged" if number else "the run was stopped"
        case state:
            return f"{number} {state}"
