"""The last output of a process, separated from the dump that faulthandler prints when a signal ends it."""

from __future__ import annotations

import re

__all__ = ["crashed_in", "last_line", "shortened"]

_DUMP = re.compile(r"^Fatal Python error: ", re.MULTILINE)
_CURRENT = "Current thread"


def shortened(text: str, *, limit: int) -> str:
    """The end of an output, at most `limit` characters of it.

    After a crash: the output before the dump, and of the dump its title and one stack, that of the thread that crashed
    (or the main thread's, which comes last, if that thread ran no Python). A dump of ten threads and a hundred
    extension modules would leave no room for the one line that says why.
    """
    before, dump = _parted(text)
    if not dump:
        return text.strip()[-limit:]
    title, *parts = dump.strip().split("\n\n")
    stacks = [part for part in parts if part.startswith((_CURRENT, "Thread"))]
    kept = next((stack for stack in stacks if stack.startswith(_CURRENT)), stacks[-1] if stacks else "")
    told = f"{title}\n\n{kept}".strip()[: limit // 2]
    return f"{before.strip()[len(told) + 1 - limit :]}\n{told}".strip()


def last_line(text: str) -> str:
    """The last line printed, or the last one before a dump; empty if there is none."""
    lines = _parted(text)[0].strip().splitlines()
    return lines[-1] if lines else ""


def crashed_in(text: str) -> str:
    """The dump, if the output ends with one and the thread that crashed ran Python."""
    dump = _parted(text)[1]
    return dump if _CURRENT in dump else ""


def _parted(text: str) -> tuple[str, str]:
    """The output before the last dump, and that dump."""
    begins = [found.start() for found in _DUMP.finditer(text)]
    return (text[: begins[-1]], text[begins[-1] :]) if begins else (text, "")
