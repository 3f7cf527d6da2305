"""Writing a stored case as a program: a script with the adapter, and an archive with the judgement beside it."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass

from pipeconform.execute.implementation import resolve
from pipeconform.export.adapter_text import adapter_text
from pipeconform.export.bundle import sources
from pipeconform.export.plain.source import rendered
from pipeconform.export.question import MEMBER, Question, written_question
from pipeconform.report.case_text import describe_case

__all__ = ["Program", "program_of"]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same case gives the same archive


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program's two files."""

    text: str
    archive: bytes


def program_of(question: Question, *, implementation: str, found: str, archive: str) -> Program:
    """The program that asks `question` of an implementation, named as ``--impl`` takes it.

    `found` describes what was found, in one or more lines; `archive` is the second file's name.

    Raises:
        UsageError: the adapter, or what it imports, has no source.
    """
    where, _, name = resolve(implementation).rpartition(":")
    adapter = adapter_text(where)
    text = rendered(
        "two_files",
        {
            "question": question,
            "found": found.strip(),
            "case": describe_case(question.case),
            "archive": archive,
            "adapter": adapter,
            "implementation": name if adapter else f"{where}:{name}",
        },
    )
    files = {**sources(), **(adapter.siblings if adapter else {})}
    members = {place: path.read_bytes() for place, path in files.items()}
    return Program(text=f"{text}\n", archive=_zipped({MEMBER: written_question(question), **members}))


def _zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(
                zipfile.ZipInfo(name, _EPOCH), data, compress_type=zipfile.ZIP_DEFLATED, compresslevel=9
            )
    return buffer.getvalue()
