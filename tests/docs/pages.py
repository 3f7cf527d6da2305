"""The commands and files that a page of the documentation shows."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "blocks", "shell"]

_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is to be kept in, if any, and its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [Block(*found) for found in _FENCE.findall(page.read_text("utf-8"))]


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line as bash would in a new terminal, with this environment's ``pipeconform`` first."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env={"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", **variables},
    )
