"""Runs exported programs where neither this package nor what only its controller needs can be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.programs.asked import Asked, runner
from benchmarks.programs.outcomes import Outcome
from pipeconform.campaign.again import judge_again, verdict
from pipeconform.campaign.preload import PRELOAD
from pipeconform.execute.implementation import resolve
from pipeconform.export.question import Question, written_question
from pipeconform.export.script import program_of
from pipeconform.ranks.environment import Environment
from pipeconform.ranks.pools import Pools
from pipeconform.spec.wrappers import any_requirement

__all__ = ["ABSENT", "Place", "replayed", "tried"]

HERE = Path(__file__).parent
PATIENCE = 1500.0  # seconds; a rank on a busy machine needs long to import torch
ABSENT = ("pipeconform", "hypothesis", "click", "rich", "jinja2", "cloudpickle", "pytest")
"""What a reader of a program need not have."""
_WORDS = {0: "met", 1: "reproduced", 3: "inconclusive", 4: "another"}
_TAIL = 600  # characters


class Ended(NamedTuple):
    """How a program ended."""

    code: int
    output: str

    @property
    def word(self) -> str:
        """Its verdict."""
        return _WORDS.get(self.code, f"exit code {self.code}")


class Place:
    """A folder for one program, in which no module of `ABSENT` can be imported but what an engine `needs` itself."""

    def __init__(self, folder: Path, *, needs: Collection[str] = ()) -> None:
        self._folder, self.script = folder, folder / "shown.py"
        self._absent = folder / "absent"
        self._absent.mkdir(exist_ok=True)
        for name in set(ABSENT).difference(needs):
            (self._absent / f"{name}.py").write_text(f"raise ImportError('{name} is not there')\n")

    @property
    def environment(self) -> dict[str, str]:
        """The variables of processes in which nothing of `ABSENT` can be imported."""
        return {**os.environ, "PYTHONPATH": str(self._absent)}

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
            env=self.environment,
            cwd=self._folder,
        )


class Shared:
    """Runs the programs of one folder after each other in one process; what each of them starts anew stays.

    It has the archive of the first program, and everything that a program imports is from there.
    """

    def __init__(self, place: Place) -> None:
        self._place, self._process, self._number = place, None, 0

    def run(self, asked: Asked) -> tuple[Ended, Ended]:
        """What the program says as it is, and with the mended engine."""
        script, question = self._place.script, self._place.script.with_suffix(".json")
        self._number += 1
        own = script.rename(script.with_name(f"shown_{self._number}.py"))
        question.write_bytes(written_question(asked.question))
        name = resolve(asked.implementation).rpartition(":")[2]
        return self._asked(f"{own}:{name}", question), self._asked(asked.mended, question)

    def _asked(self, implementation: str, question: Path) -> Ended:
        if self._process is None:
            command = [
                sys.executable,
                str(HERE / "answering.py"),
                str(self._place.script.with_suffix(".zip")),
            ]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._place.environment
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{json.dumps([implementation, str(question)])}\n")
        stdin.flush()
        code, lines = json.loads(stdout.readline())
        return Ended(code, "\n".join(lines))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


def tried(asked: Asked, pools: Pools, place: Place, *, shared: Shared | None = None) -> Outcome:
    """What replay and the program say of a violation, and what the program says of an engine that is right."""
    place.write(asked.question, implementation=asked.implementation, found=asked.found)
    alone = shared is None or bool(asked.question.settings)
    if shared is not None and not alone:
        wrong, mended = shared.run(asked)
    else:
        wrong, mended = (_ended(place.run(*arguments)) for arguments in ((), ("--impl", asked.mended)))
    sought = asked.question.sought
    assert sought is not None
    found = Outcome(
        implementation=asked.implementation,
        requirement=sought.requirement,
        status=sought.status,
        signature=sought.signature,
        replay=replayed(asked.question, asked.implementation, pools),
        program=wrong.word,
        mended=mended.word,
        alone=alone,
    )
    if found.as_it_should:
        return found
    said = [one.output[-_TAIL:] for one in (wrong, mended)]
    return msgspec.structs.replace(found, said="\n--\n".join(said))


def _ended(done: subprocess.CompletedProcess[str]) -> Ended:
    return Ended(done.returncode, f"{done.stdout}{done.stderr}")


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
