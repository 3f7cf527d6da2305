"""Runs exported programs where neither this package nor what only its controller needs can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec

from benchmarks.programs.asked import Asked, runner
from benchmarks.programs.outcomes import Outcome
from pipeconform.campaign.again import judge_again, verdict
from pipeconform.campaign.preload import PRELOAD
from pipeconform.export.question import Question
from pipeconform.export.script import program_of
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.pools import Pools
from pipeconform.spec.wrappers import any_requirement

__all__ = ["ABSENT", "Place", "replayed", "tried"]

PATIENCE = 1500.0  # seconds; a rank on a busy machine needs long to import torch
ABSENT = ("pipeconform", "hypothesis", "click", "rich", "jinja2", "cloudpickle", "pytest")
"""What a reader of a program need not have."""
_WORDS = {0: "met", 1: "reproduced", 3: "inconclusive", 4: "another"}
_TAIL = 600  # characters


class Place:
    """A folder for one program, in which no module of `ABSENT` can be imported."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.script = folder, folder / "shown.py"
        self._absent = folder / "absent"
        self._absent.mkdir(exist_ok=True)
        for name in ABSENT:
            (self._absent / f"{name}.py").write_text(f"raise ImportError('{name} is not there')\n")

    def write(
        self,
        question: Question,
        *,
        implementation: str,
        found: str = "found\nmore",
        change: Callable[[str], str] = str,
    ) -> None:
        """Write the two files; `change` is applied to the adapter's text."""
        program = program_of(question, implementation=implementation, found=found, archive="shown.zip")
        self.script.write_text(change(program.text))
        self.script.with_suffix(".zip").write_bytes(program.archive)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Execute the program; after `PATIENCE` it is ended, and raises TimeoutExpired."""
        return subprocess.run(
            [sys.executable, str(self.script), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "PYTHONPATH": str(self._absent)},
            cwd=self._folder,
        )


def tried(asked: Asked, pools: Pools, place: Place) -> Outcome:
    """What replay and the program say of a violation, and what the program says of an engine that is right."""
    place.write(asked.question, implementation=asked.implementation, found=asked.found)
    wrong, mended = place.run(), place.run("--impl", asked.mended)
    sought = asked.question.sought
    assert sought is not None
    found = Outcome(
        implementation=asked.implementation,
        requirement=sought.requirement,
        status=sought.status,
        signature=sought.signature,
        replay=replayed(asked.question, asked.implementation, pools),
        program=_word(wrong),
        mended=_word(mended),
    )
    if found.as_it_should:
        return found
    said = [f"{one.stdout}{one.stderr}"[-_TAIL:] for one in (wrong, mended)]
    return msgspec.structs.replace(found, said="\n--\n".join(said))


def _word(done: subprocess.CompletedProcess[str]) -> str:
    return _WORDS.get(done.returncode, f"exit code {done.returncode}")


def replayed(question: Question, implementation: str, pools: Pools) -> str:
    """The kind of verdict of ``pipeconform replay``."""
    rows, sought = [any_requirement(name) for name in question.requirements], question.sought
    hung = sought is not None and sought.status == "hung"
    with _environment_of(question, pools) as own:
        outcomes = judge_again(question.case, rows, runner(own, implementation), hung=hung)
    return verdict(outcomes, sought).kind


def _environment_of(question: Question, pools: Pools) -> AbstractContextManager[Pools]:
    """The given processes, or new ones with the variables of the question's variant."""
    if not question.settings:
        return nullcontext(pools)
    return Pools(Environment(question.variant, dict(question.settings)), preload=PRELOAD)
