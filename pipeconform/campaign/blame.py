"""Exceptions that say nothing about the implementation: mistakes of its adapter, and machines that lack something."""

from __future__ import annotations

import re

from pipeconform.ranks.frames import chain_lines
from pipeconform.ranks.verdict import Raised

__all__ = ["blamed"]

_REFERENCE = "pipeconform.reference_impl."
"""Its adapters, and the wrong ones beside them, are the engine as well."""
_IMPORTS = ("ImportError", "ModuleNotFoundError")
_NO_DEVICE = re.compile(
    r"doesn't have \w+ built in|not compiled with \w+ (enabled|support)|No \w+ GPUs are available|"
    r"Found no NVIDIA driver|NVIDIA driver on your system is too old|Cannot access accelerator device when none",
    re.IGNORECASE,
)
"""What torch says of a device or a backend that it cannot use here."""
_MISTAKES = frozenset(
    {
        "AssertionError",
        "AttributeError",
        "IndexError",
        "KeyError",
        "NameError",
        "NotImplementedError",
        "RecursionError",
        "StopIteration",
        "TypeError",
        "UnboundLocalError",
        "ValueError",
        "ZeroDivisionError",
    }
)
"""What Python raises of a line. Another error may be of an engine in C++, of which no frame is seen."""


def blamed(raised: Raised, *, adapter: str) -> str:
    """What to change where an exception is not the engine's doing; empty where it may be.

    `adapter` is the name of the adapter's module. An exception is its own where no other code stands between the
    harness and the line that raised; one that an engine raised, and that the adapter wraps, is the engine's.
    """
    root = raised.causes[-1] if raised.causes else raised
    chain, frames = "\n".join(f"  {line}" for line in chain_lines(raised.frames)), raised.frames
    what = f"{root.type}: {root.message.strip()}"
    if not frames:
        return ""
    if root.type in _IMPORTS:
        return f"an import failed, {what}\n{chain}\ninstall what is missing, or mend the import"
    if frames[-1].module.startswith("torch.") and _NO_DEVICE.search(root.message):
        return f"this machine, or its torch, has no such device or backend: {what}\n{chain}\nchoose another --device"
    last = frames[-1]
    stated = last.source.startswith(("raise", "assert"))
    alone = not adapter.startswith(_REFERENCE) and all(frame.module == adapter for frame in frames)
    if alone and (stated or root.type in _MISTAKES):
        return (
            f"it raised {what}\n{chain}\nno code of an engine stands in between: mend {last.function}() in the "
            f"adapter's file, line {last.line}"
        )
    return ""
