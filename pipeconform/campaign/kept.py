"""Keeps every judged case in a folder, so that others can check the verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from pipeconform.case.any_case import AnyCase
from pipeconform.errors import BadResultError
from pipeconform.writing import whole_file

__all__ = ["JudgedCases", "KeptCases", "read_judged"]

_CASES, _JUDGED = "cases", "judged"


class JudgedCases(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The digests of the cases that one cell judged."""

    requirement: str
    schedule: str
    variant: str
    digests: tuple[str, ...]


class KeptCases:
    """A folder with ``cases/DIGEST.json`` for each case and a file for each cell in ``judged/``.

    Several workers may write to it at once: the file of a case is the same whichever worker writes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, judged: JudgedCases, cases: Iterable[AnyCase]) -> None:
        """Write the cases that one cell judged, and their digests.

        Raises:
            BadResultError: the folder cannot be written.
        """
        for case in cases:
            self._write(self._folder / _CASES / f"{case.digest}.json", msgspec.json.encode(case))
        name = f"{judged.requirement}.{judged.schedule}.{judged.variant}.json"
        self._write(self._folder / _JUDGED / name, msgspec.json.encode(judged))

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        try:
            with whole_file(path) as part:
                part.write_bytes(data)
        except OSError as error:
            raise BadResultError(f"cannot keep a case in {path.parent}: {error.strerror or error}") from error


def read_judged(folder: Path) -> tuple[tuple[JudgedCases, ...], dict[str, bytes]]:
    """Read such a folder: the cells in order of their names, and the cases' JSON by digest."""
    judged = tuple(
        msgspec.json.decode(path.read_bytes(), type=JudgedCases)
        for path in sorted((folder / _JUDGED).glob("*.json"))
    )
    cases = {path.stem: path.read_bytes() for path in sorted((folder / _CASES).glob("*.json"))}
    return judged, cases
