"""The Python stacks of stuck ranks, dumped by faulthandler even while native code blocks."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from pipeconform.ranks.forkserver import ForkServer, Group

__all__ = ["Dump", "collect", "without_harness"]

_LIMIT = 1.0  # seconds for all ranks together
_POLL = 0.01  # seconds
_LENGTH = 32 * 1024  # characters kept of one rank's stacks

# The frames from the task's caller outwards are ours, the same in every stack.
_HARNESS = re.compile(r'^  File "[^"]*ranks[/\\]rank\.py", line \d+ in _run\n(?:  File .*\n?)*', re.MULTILINE)
_LISTENING = re.compile(
    r'^(?:  File "[^"]*_ops\.py", line \d+ in redispatch\n)?'
    r'  File "[^"]*(?:observe[/\\]traffic|ranks[/\\]recording)[/\\]\w+\.py", line \d+ in .*\n',
    re.MULTILINE,
)
_EXAMINER = re.compile(
    r'^(?:Current t|T)hread 0x.*\n(?:  File .*\n)*?  File "[^"]*ranks[/\\]examiner\.py".*\n(?:  File .*\n)*\n?',
    re.MULTILINE,
)


def collect(server: ForkServer, group: Group, *, paths: Mapping[int, Path]) -> dict[int, str]:
    """Have the ranks in ``paths`` write their stacks to their files, and read them; a rank may not answer."""
    server.signal(group, ranks=tuple(paths), signum=signal.SIGUSR1)
    dump = Dump(paths)
    while not dump.over:
        time.sleep(_POLL)
    return dump.texts()


class Dump:
    """The stacks that ranks have been asked to write to the files ``paths``."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        self._paths = paths
        self._until = time.monotonic() + _LIMIT
        self._looked = time.monotonic()
        self._sizes: dict[int, int] = {}
        self._written = False

    @property
    def over(self) -> bool:
        """Whether all have finished writing, or the time is over."""
        now = time.monotonic()
        if not self._written and now - self._looked >= _POLL:
            self._looked = now
            before, self._sizes = self._sizes, {rank: _size(path) for rank, path in self._paths.items()}
            self._written = self._sizes == before and all(self._sizes.values())
        return self._written or now > self._until

    def texts(self) -> dict[int, str]:
        """By rank, what it has written, without the harness's frames."""
        return {rank: without_harness(_text(path)) for rank, path in self._paths.items()}


def without_harness(text: str) -> str:
    """Cut the harness's frames off a faulthandler dump."""
    text = _HARNESS.sub("", text if text.endswith("\n") else text + "\n")
    return _EXAMINER.sub("", _LISTENING.sub("", text)).strip()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a task may delete any file
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:_LENGTH]
    except OSError:
        return ""
