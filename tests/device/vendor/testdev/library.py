"""Where the compiled extension lies: in a folder whose name depends on the sources and on torch's release."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

__all__ = ["NAME", "SOURCES", "library"]

NAME = "testdev_c"
SOURCES = Path(__file__).parent / "csrc"


@functools.cache
def library() -> Path:
    """The file that is loaded; `tests.device.building` makes it."""
    import torch.version  # also while torch is being imported

    found = hashlib.sha256(torch.version.__version__.encode())
    for path in sorted(SOURCES.iterdir()):
        found.update(path.name.encode() + path.read_bytes())
    own = os.environ.get("TESTDEV_FOLDER")
    folder = Path(own) if own else Path(__file__).resolve().parents[4] / "build" / "testdev"
    return folder / found.hexdigest()[:16] / f"{NAME}.so"
