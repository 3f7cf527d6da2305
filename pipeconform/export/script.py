"""Writing a stored case as a program: a script with the adapter, and an archive with the judgement beside it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

from pipeconform.execute.implementation import resolve
from pipeconform.export.adapter_text import AdapterText, adapter_text
from pipeconform.export.bundle import sources
from pipeconform.export.question import MEMBER, Question, written_question
from pipeconform.report.case_text import describe_case

__all__ = ["Program", "program_of"]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same case gives the same archive

_BEGIN = """
if __name__ == "__main__":  # execute the case and judge it; what follows is the adapter, which the ranks import
    import os
    import sys

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), {archive!r}))
    try:
        from pipeconform.export.program import main
    except ImportError as error:
        print(f"INCONCLUSIVE: {{error}}; {archive} belongs beside this file")
        sys.exit(3)
    sys.exit(main(__file__, {implementation!r}))
"""


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
    begin = _BEGIN.format(archive=archive, implementation=name if adapter is not None else f"{where}:{name}")
    head = "\n".join(_head(question, found=found, archive=archive, adapter=adapter))
    quoted = head.replace("\\", "\\\\").replace('"""', "'''")
    future, source, siblings = "", "", {}
    if adapter is not None:
        future, source, siblings = adapter.future, adapter.source, adapter.siblings
    text = f'"""{quoted}\n"""\n\n{future}{begin}\n{source}'
    members = {place: path.read_bytes() for place, path in {**sources(), **siblings}.items()}
    return Program(text=text, archive=_zipped({MEMBER: written_question(question), **members}))


def _head(question: Question, *, found: str, archive: str, adapter: AdapterText | None) -> Iterator[str]:
    yield f"{question.engine}: {found.strip()}"
    yield ""
    yield "The case:"
    yield from (f"  {line}" for line in describe_case(question.case).splitlines())
    yield ""
    yield f"Run it with  python FILE ; {archive} belongs beside it; torch, numpy, msgspec and the engine are needed."
    yield "It ends with REPRODUCED (exit code 1) where the case shows the violation above, NOT REPRODUCED where the"
    yield "requirement is met (0) or broken in another way (4), and INCONCLUSIVE (3) where the program could not run."
    yield "What decides is the code that found it: it is in the archive, with the case as data."
    if adapter is None:
        return
    yield "Below stands the adapter, as it was when this was found."
    if adapter.docstring:
        yield ""
        yield adapter.docstring


def _zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(
                zipfile.ZipInfo(name, _EPOCH), data, compress_type=zipfile.ZIP_DEFLATED, compresslevel=9
            )
    return buffer.getvalue()
