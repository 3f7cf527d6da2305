"""The options of a run; this module imports neither torch nor Hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeconform.attach.session import Attach
from pipeconform.gate.expectations import ExpectationsFile
from pipeconform.spec import Profile, profile

__all__ = ["TIME_LIMIT", "Options"]

TIME_LIMIT = 60.0
"""Seconds for one case, unless asked for otherwise."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run, as on the command line but typed."""

    implementation: str
    profile: str = "core"
    schedules: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    ranks: tuple[int, int] = (1, 4)
    seed: int = 0
    examples: int | None = None
    device: str = "cpu"
    backend: str = "auto"
    ranks_per_device: int = 1
    time_limit: float = TIME_LIMIT
    """Seconds after which the ranks of a case are stopped, whatever they do."""
    share: Path | None = None
    """A folder for executions that workers share."""
    expectations: ExpectationsFile | None = None
    keep_cases: Path | None = None
    """A folder to keep every judged case in."""
    attach: Attach | None = None
    """Where agents connect whose ranks execute the cases; None for ranks on this machine."""
    show_output: bool = False
    """Whether what ranks print is shown while they print it."""
    coverage: Path | None = None
    """A folder in which ranks record what they execute of the implementation's packages."""
    debugger: str = ""
    """Which rank is debugged on which terminal (`ranks.debugger.Request`); empty for none."""
    earlier: Path | None = None
    """The result file of the previous run; its violations are executed first."""

    def sized(self) -> Profile:
        """The profile, with the number of examples asked for."""
        chosen, number = profile(self.profile), self.examples
        if number is None:
            return chosen
        return msgspec.structs.replace(
            chosen,
            corpus=number,
            costly=number,
            search=min(chosen.search, number),
            wrapper_search=min(chosen.wrapper_search, number),
            every_member=False,
        )
