"""Moves a process's memory to huge pages, so that a fork copies hundreds of entries and not many thousands.

After torch is imported, a process has some 60,000 pages of its own. A fork copies an entry for each, and the child
gives each back at its end: together that takes longer than many a case.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

__all__ = ["use_huge_pages"]

_COLLAPSE = 25  # MADV_COLLAPSE, since Linux 6.1
_SIZE = 2 << 20  # bytes, on most machines; where it is another size the kernel refuses, and nothing changes


def use_huge_pages() -> int:
    """Move what the kernel can move, which takes some tenths of a second; return the number of bytes."""
    if sys.platform != "linux":
        return 0
    with contextlib.suppress(OSError, ValueError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        moved = [address for address in list(_candidates()) if advise(address, _SIZE, _COLLAPSE) == 0]
        return _SIZE * len(moved)
    return 0


def _candidates() -> Iterator[int]:
    """The addresses of the huge pages that would lie within writable memory without a file."""
    with open("/proc/self/maps") as file:
        for line in file:
            area, rights, *others = line.split()
            if "w" not in rights or (len(others) > 3 and others[3] != "[heap]"):
                continue
            start, end = (int(part, 16) for part in area.split("-"))
            yield from range(-(-start // _SIZE) * _SIZE, end - _SIZE + 1, _SIZE)
