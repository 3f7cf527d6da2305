"""Moments cross between hosts as seconds since a rank's task was handed to it."""

from __future__ import annotations

import msgspec

from pipeconform.ranks.standing import Standing

__all__ = ["shifted"]


def shifted(standing: Standing, seconds: float) -> Standing:
    """The same on a clock that shows `seconds` more; a wait whose begin is not known stays so."""
    return msgspec.structs.replace(
        standing,
        began=standing.began + seconds,
        ended=standing.ended + seconds,
        since=standing.since + seconds if standing.since else 0.0,
    )
