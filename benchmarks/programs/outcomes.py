"""What was said of each violation, kept beside the page: running all programs takes an hour, and may go on later."""

from __future__ import annotations

import msgspec

__all__ = ["Outcome"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One violation: what was sought, and three verdicts (met, reproduced, another, inconclusive)."""

    implementation: str
    requirement: str
    status: str
    signature: str
    replay: str
    """Of ``pipeconform replay``."""
    program: str
    """Of the exported program."""
    mended: str
    """Of the exported program, with an engine that is right."""
    alone: bool = True
    """Whether the program had processes of its own; else it shared them with others (`Shared`)."""
    said: str = ""
    """The ends of what the program printed, if something is not as it should be."""

    @property
    def verdicts(self) -> tuple[str, str, str]:
        """Of replay, of the program, and of the program with the mended engine."""
        return self.replay, self.program, self.mended

    @property
    def as_it_should(self) -> bool:
        """Whether program and replay agree that it is there, and it is not there where it is mended."""
        return self.verdicts == ("reproduced", "reproduced", "met")
