"""The main function of an exported program: execute its case with the adapter in its file, and print the verdict.

It is in the program's archive together with everything that it imports, and is the same code as `pipeconform replay`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeconform.campaign.runner import Runner
    from pipeconform.export.question import Question

__all__ = ["ANOTHER", "INCONCLUSIVE", "MET", "REPRODUCED", "answered", "main"]

MET, REPRODUCED, INCONCLUSIVE, ANOTHER = 0, 1, 3, 4
"""Exit codes."""
_NEEDS = ("torch", "numpy", "msgspec")


def main(file: str, implementation: str, arguments: list[str] | None = None) -> int:
    """Judge the case of the archive that this module was imported from, and return the exit code.

    `file` is the program's path; `implementation` is ``module:Object``, or the name of an object in that file.
    """
    parser = argparse.ArgumentParser(
        description="Execute the case and report whether it still shows the violation."
    )
    parser.add_argument(
        "--impl", metavar="MODULE:OBJECT", help="judge this adapter instead of the one in this file"
    )
    given = parser.parse_args(arguments)
    own = implementation if ":" in implementation else f"{Path(file).resolve()}:{implementation}"
    lacking = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if lacking:
        print(f"INCONCLUSIVE: not installed: {', '.join(lacking)}; the judgement needs {', '.join(_NEEDS)}")
        return INCONCLUSIVE
    from pipeconform.errors import PipeconformError
    from pipeconform.showing import shown

    try:
        with _unpacked() as folder:
            return _judged(folder, given.impl or own)
    except PipeconformError as error:
        print(shown(f"INCONCLUSIVE: {error}"))
    except Exception as error:
        traceback.print_exc()
        print(shown(f"INCONCLUSIVE: the program itself raised {type(error).__name__}: {error}"))
    return INCONCLUSIVE


@contextmanager
def _unpacked() -> Iterator[Path]:
    """The archive unpacked into a folder, so that rank processes import files and tracebacks can show source."""
    (archive,) = [one for one in sys.path if one.endswith(".zip") and __file__.startswith(one)]
    with tempfile.TemporaryDirectory(prefix="judgement-") as name:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(name)
        sys.path[sys.path.index(archive)] = name
        yield Path(name)


def _judged(folder: Path, implementation: str) -> int:
    from pipeconform.export.question import MEMBER, read_question
    from pipeconform.showing import shown

    question = read_question((folder / MEMBER).read_bytes())
    with _runner(question, implementation) as runner:
        print(shown(_heading(question, runner)), flush=True)
        lines, code = answered(question, runner)
    print(shown("\n".join(lines)))
    return code


def answered(question: Question, runner: Runner[Any, Any]) -> tuple[list[str], int]:
    """Execute the case; return the lines to print, and the exit code.

    Raises:
        PipeconformError: the case could not be judged.
    """
    from pipeconform.campaign.again import judge_again, localised, verdict
    from pipeconform.report.localisation_text import localisation_lines
    from pipeconform.spec.wrappers import any_requirement

    sought, chosen = question.sought, [any_requirement(name) for name in question.requirements]
    hung = sought is not None and sought.status == "hung"
    outcomes = judge_again(question.case, chosen, runner, hung=hung)
    said = verdict(outcomes, sought)
    match said.kind:
        case "met":
            return [f"NOT REPRODUCED: {', '.join(said.requirements)} met"], MET
        case "another":
            assert sought is not None
            was = f"{sought.requirement} {sought.status}: {sought.signature}"
            words, code = f"NOT REPRODUCED ({was}), but the case shows another violation:", ANOTHER
        case "violated":
            words, code = "VIOLATED:", REPRODUCED
        case "reproduced":
            words, code = "REPRODUCED:", REPRODUCED
    where = localisation_lines(localised(question.case, outcomes, runner))
    return [words, said.text, *where], code


def _heading(question: Question, runner: Runner[Any, Any]) -> str:
    was = "" if runner.title == question.engine else f" (when this was written: {question.engine})"
    return f"{runner.title}{was}, judged by {', '.join(question.requirements)}"


@contextmanager
def _runner(question: Question, implementation: str) -> Iterator[Runner[Any, Any]]:
    """Processes for the case, and the implementation described.

    Raises:
        UsageError: the implementation cannot be used, or there are too few devices.
        HarnessError: processes cannot be started.
    """
    from pipeconform.campaign.describing import describe, runner_of
    from pipeconform.campaign.here import pools_here
    from pipeconform.case.any_case import world_sizes
    from pipeconform.errors import UsageError
    from pipeconform.execute.implementation import resolve
    from pipeconform.ranks import devices
    from pipeconform.ranks.environment import Environment

    reference = resolve(implementation)
    places = devices.resolve(
        question.device, backend=question.backend, ranks_per_device=question.ranks_per_device
    )
    reason = places.reason_against(max(world_sizes(question.case)))
    if reason is not None:
        raise UsageError(reason)
    with pools_here(Environment(question.variant, dict(question.settings)), places) as pools:
        yield runner_of(describe(pools, reference), implementation=reference, pools=pools)
