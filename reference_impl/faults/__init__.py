"""Implementations that are wrong on purpose; each must be caught by the requirement it breaks.

Every fault is a small change of the reference, in the file of its kind. This module is their list: plain
data, so that it can be read without importing torch or any fault. ``FAULTS[name].reference`` is what
``--impl`` takes.
"""

from __future__ import annotations

from .fault import Fault
from .registry import FAULTS

__all__ = ["FAULTS", "Fault"]
