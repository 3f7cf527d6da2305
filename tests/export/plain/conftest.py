"""Plain programs, and where they run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeconform.campaign.again import Sought
from pipeconform.case.any_case import AnyCase
from pipeconform.export.plain.script import plain_program
from pipeconform.export.question import Question

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def question_of(
    case: AnyCase, requirement: str, signature: str, *, status: str = "failed", variant: str = "default"
) -> Question:
    return Question(
        engine="torch.distributed.pipelining",
        case=case,
        requirements=(requirement,),
        sought=Sought(requirement=requirement, status=status, signature=signature),
        variant=variant,
        settings=DETAIL if variant == "validated" else {},
    )


def written(question: Question, message: str = "") -> str:
    sought = question.sought
    found = f"{sought.requirement} {sought.status}: {sought.signature}" if sought else "a case"
    return plain_program(question, found=f"{found}\n{message}")


class Programs:
    """Runs programs, one after the other."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("forked.py"))]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, path: Path, change: str = "") -> tuple[int, str]:
        """The exit code and the output of a program, in whose processes `change` is executed first."""
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([str(path), change]) + "\n")
        stdin.flush()
        code, output = json.loads(stdout.readline())
        return code, output

    def close(self) -> None:
        """End the server."""
        self._server.communicate()


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    found = Programs()
    yield found
    found.close()
