"""Implementations that are wrong on purpose; each must be caught by the requirement it breaks.

Every fault is a small change of the reference, in the file of its kind: a class that replaces one of the
reference's. Its label, ``@breaks``, puts it there, and says what it breaks and how that shows (``@breaks_promise`` in
files about data-parallel wrappers). `FAULTS` and `WRAPPER_FAULTS` collect the labels, by importing all of these files
on first use; ``FAULTS[name].reference`` is the value for ``--impl``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .fault import LABELLED, LABELLED_WRAPPERS, Fault

if TYPE_CHECKING:
    FAULTS: Mapping[str, Fault]
    WRAPPER_FAULTS: Mapping[str, Fault]

__all__ = ["FAULTS", "WRAPPER_FAULTS", "Fault"]

_LABELLED = {"FAULTS": LABELLED, "WRAPPER_FAULTS": LABELLED_WRAPPERS}


def __getattr__(name: str) -> Any:
    """Collect the faults; a rank that runs one does not need the others."""
    if name not in _LABELLED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    found = sorted(_LABELLED[name].values(), key=lambda fault: fault.reference)
    globals()[name] = MappingProxyType({fault.name: fault for fault in found})
    return globals()[name]
