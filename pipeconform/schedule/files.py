"""Reading and writing table files, in the format of the file name's suffix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeconform.errors import BadTableError
from pipeconform.reading import file_text
from pipeconform.schedule.csv import from_csv, to_csv
from pipeconform.schedule.json import from_json, to_json
from pipeconform.schedule.table import Table

_MOST_BYTES = 64 << 20


def read_table(
    path: Path, *, placement: Sequence[int] | None = None, num_microbatches: int | None = None
) -> Table:
    """Read a ``.csv`` (torch's formats) or ``.json`` file; the options are for CSV, which has neither.

    Raises:
        BadTableError: The file cannot be read; the message gives line, column and reason.
    """
    text = file_text(path, error=BadTableError, most=_MOST_BYTES)
    match path.suffix:
        case ".csv":
            return from_csv(text, name=str(path), placement=placement, num_microbatches=num_microbatches)
        case ".json":
            return from_json(text, name=str(path))
    raise BadTableError(_unknown_ending(path))


def write_table(table: Table, path: Path) -> None:
    """Write a ``.csv`` or ``.json`` file.

    Raises:
        BadTableError: The suffix is neither, or the file cannot be written.
    """
    match path.suffix:
        case ".csv":
            text = to_csv(table)
        case ".json":
            text = to_json(table)
        case _:
            raise BadTableError(_unknown_ending(path))
    try:
        path.write_bytes(text.encode())
    except OSError as reason:
        raise BadTableError(f"{path}: {reason.strerror}") from None


def _unknown_ending(path: Path) -> str:
    return f"{path}: tables are .csv or .json files, not {path.suffix or 'files without a suffix'}"
