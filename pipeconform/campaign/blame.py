"""Exceptions that say nothing about the implementation: defects of its adapter, and what the machine lacks."""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Sequence

from pipeconform.ranks.frames import Frame, chain_lines
from pipeconform.ranks.verdict import Raised

__all__ = ["blamed", "is_no_answer"]

_REFERENCE = "pipeconform.reference_impl."
"""The reference's adapters, right or wrong, are the engine as well."""
_IMPORTS = ("ImportError", "ModuleNotFoundError")
_STATED = re.compile(
    r"(?:(?:if|elif|else|while|for|with|case|try|except|finally)\b.*:\s*)?(?:raise|assert)\b"
)
"""A line that raises, alone or after the words of a compound statement."""
_NO_DEVICE = re.compile(
    r"doesn't have \w+ built in|not compiled with \w+ (enabled|support)|No \w+ GPUs are available|"
    r"Found no NVIDIA driver|NVIDIA driver on your system is too old|Cannot access accelerator device when none",
    re.IGNORECASE,
)
"""How torch reports a device or a backend that it cannot use on this machine."""
_MISTAKES = frozenset(
    {
        "AssertionError",
        "AttributeError",
        "IndentationError",
        "IndexError",
        "KeyError",
        "NameError",
        "NotImplementedError",
        "RecursionError",
        "StopIteration",
        "SyntaxError",
        "SystemExit",
        "TypeError",
        "UnboundLocalError",
        "ValueError",
        "ZeroDivisionError",
    }
)
"""Errors that Python itself raises. Others may come from an engine's C++ code, which leaves no frame."""
_NO_ANSWERS = frozenset({"IndentationError", "NameError", "SyntaxError", "UnboundLocalError", *_IMPORTS})
"""Errors that are wrong whatever the user did."""


def blamed(raised: Raised, *, adapter: str, engine: Collection[str] = ()) -> str:
    """What to change if an exception is not the engine's fault; empty if it may be.

    `adapter` is the name of the adapter's module, `engine` those of the engine's packages and modules, if known. The
    adapter is at fault if no other code stands between the harness and the line that raised; if an engine raised and
    the adapter wrapped the exception, the engine is.
    """
    root = raised.causes[-1] if raised.causes else raised
    chain, frames = "\n".join(f"  {line}" for line in chain_lines(raised.frames)), raised.frames
    what = f"{root.type}: {root.message.strip()}"
    if not frames:
        return ""
    if root.type in _IMPORTS:
        return f"an import failed, {what}\n{chain}\ninstall what is missing, or fix the import"
    if frames[-1].module.startswith("torch.") and _NO_DEVICE.search(root.message):
        return f"this machine or its torch has no such device or backend: {what}\n{chain}\nchoose another --device"
    last = frames[-1]
    stated = _STATED.match(last.source) is not None
    alone = not adapter.startswith(_REFERENCE) and _are_adapters(frames, adapter, engine)
    if alone and (stated or root.type in _MISTAKES):
        file = "the adapter's file" if last.module == adapter else os.path.basename(last.file)
        remedy = f"fix {last.function}() in {file}, line {last.line}"
        return f"it raised {what}\n{chain}\nno code of an engine is involved: {remedy}"
    return ""


def _are_adapters(frames: Sequence[Frame], adapter: str, engine: Collection[str]) -> bool:
    """Whether all frames are the adapter's: of its module, or of others in its folder if it says what the engine is."""
    folders = {os.path.dirname(frame.file) for frame in frames if frame.module == adapter}
    return all(
        frame.module == adapter
        or (bool(engine) and os.path.dirname(frame.file) in folders and not _is_within(frame.module, engine))
        for frame in frames
    )


def _is_within(module: str, packages: Collection[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in packages)


def is_no_answer(raised: Raised) -> bool:
    """Whether an exception cannot be the answer to what is wrong on purpose in a case."""
    root = raised.causes[-1] if raised.causes else raised
    return root.type in _NO_ANSWERS or bool(_NO_DEVICE.search(root.message))
