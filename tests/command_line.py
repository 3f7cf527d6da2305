"""The command line in this process, where torch is imported and fork servers run already."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: object
    stdout: str
    stderr: str


def type_in(folder: Path, arguments: Sequence[object]) -> Done:
    """Run a command in a folder, as `python -m pipeconform` does in a process of its own."""
    from pipeconform.cli import main

    shown, told = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(told),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    return Done(ended.value.code, shown.getvalue(), told.getvalue())
