"""Folders that one run has to itself."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeconform.errors import BadResultError

__all__ = ["claimed", "emptied"]

_LOCK = ".lock"


@contextlib.contextmanager
def claimed(folder: Path, *, remedy: str = "choose another --out") -> Iterator[None]:
    """Lock a folder for one run, and make it if it is not there: two runs in one would mix up their results.

    Raises:
        BadResultError: the folder cannot be written to, or another run is using it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise BadResultError(
            f"cannot write results to {folder}: {error.strerror or error}; {remedy}"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadResultError(f"another run is writing to {folder}; {remedy}") from error
        except OSError:
            pass  # the file system has no locks
        yield


def emptied(folder: Path) -> None:
    """Remove what an earlier run left in a claimed folder."""
    for path in folder.iterdir():
        if path.name == _LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
