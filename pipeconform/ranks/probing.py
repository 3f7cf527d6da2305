"""What this machine has of one device type, or of its accelerator (``auto``), as JSON.

A process of its own, because asking CUDA for its devices would keep ranks from being forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["driver_release", "main", "make_group", "nccl_release"]

_DRIVER = Path("/proc/driver/nvidia/version")


def main(wanted: str) -> None:
    """Print what was found; the last line is the answer, since vendors' packages may print before it."""
    print(json.dumps(_found(wanted)))


def make_group(backend: str) -> None:
    """Make the default process group of a world of one rank, as ranks do."""
    import torch.distributed as dist

    store: Any = dist.HashStore()  # type: ignore[attr-defined]  # public, says its page
    dist.init_process_group(backend, store=store, rank=0, world_size=1)


def _found(wanted: str) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    if wanted == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        wanted = "cpu" if found is None else found.type
    backend = nccl = None
    names: list[str] = []
    try:
        torch.device(wanted)
        count = None if wanted == "cpu" else torch.get_device_module(wanted).device_count()
        with contextlib.suppress(ValueError):  # a vendor's device need not have one
            backend = dist.get_default_backend_for_device(wanted) if dist.is_available() else None
        if wanted == "cuda" and dist.is_nccl_available():
            nccl = nccl_release() or torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        with contextlib.suppress(Exception):  # a vendor's device need not have a name
            names = [torch.get_device_module(wanted).get_device_name(i) for i in range(count or 0)]
    except (AttributeError, RuntimeError, ValueError) as error:
        return {"device_type": wanted, "count": 0, "backend": None, "error": str(error)}
    releases = dict(_releases(torch)) if wanted == "cuda" and count else {}
    return {
        "device_type": wanted,
        "count": count,
        "backend": backend,
        "error": None,
        "nccl": nccl,
        "names": names,
        "releases": releases,
    }


def _releases(torch: Any) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError):
        driver = driver_release(_DRIVER.read_text(encoding="utf-8", errors="replace"))
        if driver is not None:
            yield "driver", driver
    for name, release in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip)):
        if release:
            yield name, release


def driver_release(text: str) -> str | None:
    """The release in the text of ``/proc/driver/nvidia/version``: of the open kernel modules, or of the closed ones."""
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return found[1] if found else None


def nccl_release() -> tuple[int, int, int] | None:
    """The release of the NCCL that this process has loaded; None if it has loaded none as a library.

    ``torch.cuda.nccl.version()`` is the release that torch was compiled with, also where another one is preloaded.
    """
    number = ctypes.c_int()
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        if library.ncclGetVersion(ctypes.byref(number)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return number.value // 10_000, number.value // 100 % 100, number.value % 100
