"""Warm ranks, and a place where nothing but what an exported program needs can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeconform.campaign.preload import PRELOAD
from pipeconform.export.question import Question
from pipeconform.export.script import program_of
from pipeconform.ranks.pools import Pools
from tests.warm_servers import WarmServers

PATIENCE = 600.0  # seconds; a rank on a busy machine needs long to import torch
ABSENT = ("pipeconform", "hypothesis", "click", "rich", "jinja2", "cloudpickle", "pytest")
"""What a reader of a program need not have."""

Shown = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def pools(warm_servers: WarmServers) -> Iterator[Pools]:
    with warm_servers.used():
        made = Pools(preload=PRELOAD)
    with made:
        yield made


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    """Write a question as a program, run it where neither this package nor Hypothesis can be imported, and see."""
    absent = tmp_path / "absent"
    absent.mkdir()
    for name in ABSENT:
        (absent / f"{name}.py").write_text(f"raise ImportError('{name} is not there')\n")

    def run(
        question: Question | None = None,
        *,
        implementation: str = "",
        arguments: tuple[str, ...] = (),
        change: Callable[[str], str] = str,
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "shown.py"
        if question is not None:
            program = program_of(
                question, implementation=implementation, found="found\nmore", archive="shown.zip"
            )
            script.write_text(change(program.text))
            script.with_suffix(".zip").write_bytes(program.archive)
        return subprocess.run(
            [sys.executable, str(script), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "PYTHONPATH": str(absent)},
            cwd=tmp_path,
        )

    return run
