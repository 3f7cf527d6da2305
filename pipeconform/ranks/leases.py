"""Numbered resources of this host, devices or processor cores, each of which one process may use at a time.

A process that uses one holds a lock on its file, so the kernel releases what a killed process held; the file names
the holder. A process that waits holds a lock on a wish: the largest wish is served first, or small worlds would keep a
large one waiting forever. All processes that share the folder see the same leases: by default those of one user on
this host.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeconform.errors import PoolError, UsageError

__all__ = ["FOLDER_VARIABLE", "Lease", "Leases", "leases_folder"]

FOLDER_VARIABLE = "PIPECONFORM_LEASES"
_POLL = 0.02  # seconds between two looks for something free


def leases_folder() -> Path:
    """``PIPECONFORM_LEASES``, which several users may share, or a folder of this user among the temporary files."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else Path(tempfile.gettempdir()) / f"pipeconform-leases-{os.getuid()}"


class Lease:
    """The resources held: `indices`, ascending; leaving the context, or :meth:`release`, releases them."""

    def __init__(self, files: dict[int, int]) -> None:
        self._files = files

    @property
    def indices(self) -> tuple[int, ...]:
        """The numbers of the resources held."""
        return tuple(sorted(self._files))

    def add(self, other: Lease) -> None:
        """Also hold what `other` held."""
        self._files.update(other._files)
        other._files = {}

    def release(self) -> None:
        """Release everything; a second call is harmless."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Leases:
    """Leases on resources of `kind`: this process calls them 0, 1, …; all processes of the host use these `names`.

    Raises:
        UsageError: the folder cannot be written.
    """

    def __init__(self, kind: str, names: Sequence[str], *, folder: Path | None = None) -> None:
        self.kind, self.names = kind, tuple(re.sub(r"[^\w.]", "_", name) for name in names)
        self._folder = leases_folder() if folder is None else folder
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.close(self._open(f"{kind}.mutex"))
        except OSError as error:
            raise UsageError(
                f"cannot keep leases in {self._folder}: {error.strerror or error}; "
                f"set {FOLDER_VARIABLE} to a folder on a local disk"
            ) from error

    def take(self, number: int, *, patience: float, prefer: Sequence[int] = ()) -> Lease:
        """Wait up to `patience` seconds for `number` of them; those in `prefer` are taken first, if they are free.

        Raises:
            PoolError: they were not free in time; the message names the holders.
            ValueError: there are not that many.
        """
        if number > len(self.names):
            raise ValueError(f"{number} of {len(self.names)} {self.kind} cannot be leased")
        found = self.try_take(number, prefer=prefer)
        if found is not None:
            return found
        deadline = time.monotonic() + patience
        with self._wish(number) as mine:
            while (found := self.try_take(number, prefer=prefer, mine=mine)) is None:
                if time.monotonic() > deadline:
                    raise PoolError(
                        f"{number} {self.kind} of this host were not free within {patience:g} s; {self._holders()}"
                    )
                time.sleep(_POLL)
        return found

    def try_take(self, number: int, *, prefer: Sequence[int] = (), mine: str = "") -> Lease | None:
        """Lease `number` of them if they are free and no other wish comes first; `mine` is this process's wish."""
        with self._alone():
            if any(_before(other, mine) for other in self._wishes() if other != mine):
                return None
            lease, order = Lease({}), dict.fromkeys((*prefer, *range(len(self.names))))
            for index in order:
                if len(lease.indices) == number:
                    break
                file = self._locked(self._file(index))
                if file is not None:
                    _sign(file)
                    lease.add(Lease({index: file}))
            if len(lease.indices) == number:
                return lease
            lease.release()
            return None

    def _holders(self) -> str:
        held = {}
        for index, name in enumerate(self.names):
            with contextlib.suppress(OSError):
                held[name] = (self._folder / self._file(index)).read_text()
        return "last held by " + ", ".join(f"{owner} ({self.kind} {name})" for name, owner in held.items())

    def _file(self, index: int) -> str:
        return f"{self.kind}-{self.names[index]}.lock"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep every other process from looking and leasing; held for less than a millisecond."""
        file = self._open(f"{self.kind}.mutex")
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    @contextmanager
    def _wish(self, number: int) -> Iterator[str]:
        """Show other processes that this one waits; the name of the wish says for how many and since when."""
        name = f"{self.kind}-wish-{number:06d}-{time.time_ns():020d}-{os.getpid()}"
        with self._alone():
            file = self._locked(name)
        assert file is not None, "the name holds this process's id"
        try:
            yield name
        finally:
            (self._folder / name).unlink(missing_ok=True)
            os.close(file)

    def _wishes(self) -> list[str]:
        """The names of all wishes, after removing those of dead processes."""
        found = []
        for path in self._folder.glob(f"{self.kind}-wish-*"):
            file = self._locked(path.name)
            if file is None:
                found.append(path.name)
            else:
                path.unlink(missing_ok=True)
                os.close(file)
        return found

    def _locked(self, name: str) -> int | None:
        """The open and locked file of that name; None if another process has the lock."""
        file = self._open(name)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        return file

    def _open(self, name: str) -> int:
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)


def _sign(file: int) -> None:
    """Write the holder into the file, for messages; only the lock counts."""
    os.ftruncate(file, 0)
    os.pwrite(file, f"process {os.getpid()} of user {os.getuid()}".encode(), 0)


def _before(other: str, mine: str) -> bool:
    """Whether the other wish is served before this process's: the larger first, then the older."""
    if not mine:
        return True
    (size, since), (own_size, own_since) = _parts(other), _parts(mine)
    return (-size, since) < (-own_size, own_since)


def _parts(wish: str) -> tuple[int, int]:
    size, since, _ = wish.rpartition("-wish-")[2].split("-")
    return int(size), int(since)
