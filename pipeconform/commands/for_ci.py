"""What continuous integration is given beside a result: ``junit.xml``, annotations, and the summary of a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from pipeconform.commands.say import say, say_line
from pipeconform.errors import BadResultError
from pipeconform.report.causes import Known, causes_of
from pipeconform.report.github import job_summary, workflow_commands
from pipeconform.report.junit import JUNIT_NAME, junit
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.origin import Origins
from pipeconform.report.result import Result
from pipeconform.writing import whole_file

__all__ = ["append_to_summary", "is_on_github", "origins_of", "tell_github", "write_junit"]

_SUMMARY = "GITHUB_STEP_SUMMARY"
_PROJECTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Where GitHub and GitLab say that the project's files are; their paths are relative to that folder."""


def is_on_github() -> bool:
    """Whether this is a step of a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def write_junit(
    result: Result,
    folder: Path,
    *,
    expectations: Path | None = None,
    known: Sequence[Known] | None = None,
) -> None:
    """Write ``junit.xml`` completely or not at all.

    `expectations` is the file of expected failures; `known` lists findings, as in `causes_of`.

    Raises:
        BadResultError: the file cannot be written; the message names it.
    """
    path = folder / JUNIT_NAME
    file = "" if expectations is None else _in_project(expectations)
    text = junit(
        result,
        causes_of(result, known=known),
        origins=origins_of(result),
        expectations=file,
        where=folder / RESULT_NAME,
    )
    try:
        with whole_file(path) as part:
            part.write_bytes(text)
    except OSError as error:
        raise BadResultError(f"cannot write {path}: {error.strerror or error}") from error


def tell_github(
    result: Result,
    *,
    where: Path | None,
    expectations: Path | None,
    known: Sequence[Known] | None,
    err: bool = False,
) -> None:
    """Print annotations, and append to the summary of the job, if there is one.

    `where` is the result file, `expectations` the file of expected failures; `err` prints to standard error, which
    GitHub reads, too.
    """
    causes = causes_of(result, known=known)
    file = "" if expectations is None else _in_project(expectations)
    with contextlib.suppress(BrokenPipeError):  # a closed pipe does not change the verdict
        for line in workflow_commands(
            result, causes, origins=origins_of(result), expectations=file, where=where
        ):
            say_line(line, err=err)
    try:
        append_to_summary(job_summary(result, causes))
    except BadResultError as error:
        say(f"pipeconform: no summary of the job: {error}; the result file is complete", err=True)


def append_to_summary(text: str) -> None:
    """Append Markdown to the summary of a job of GitHub Actions; outside of one, do nothing.

    Raises:
        BadResultError: the file cannot be written.
    """
    path = os.environ.get(_SUMMARY)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise BadResultError(f"cannot write ${_SUMMARY}, {path}: {error.strerror or error}") from error


def origins_of(result: Result) -> Origins:
    """What finds the lines of the project that a result's violations come from."""
    return Origins(result.implementation.reference, root=_project())


def _project() -> Path:
    """The folder of the project: what GitHub or GitLab name, if this is inside of it, or the working directory."""
    here = Path.cwd()
    for name in _PROJECTS:
        folder = os.environ.get(name)
        if folder and here.is_relative_to(Path(folder).resolve()):
            return Path(folder)
    return here


def _in_project(path: Path) -> str:
    """A path as the project's files are named."""
    absolute, folder = path.resolve(), _project().resolve()
    return absolute.relative_to(folder).as_posix() if absolute.is_relative_to(folder) else ""
