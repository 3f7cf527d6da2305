"""What a rank of any exported program begins with: the adapter under test, and somebody who watches the clock.

The constants are what `assembly` writes. A part of a program: it may import torch, the standard library, and, inside
functions, the modules that the program carries.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import Any

ADAPTER = ""
WORLDS: tuple[int, ...] = ()  # the processes of each world, one world after the other
FOUND = ""

SAW, WRONG = "wrong values", "values are wrong"
DIFFERENT, UNFIT, STUCK = (
    10,
    11,
    124,
)  # exit codes of ranks; an unfit one could not run the case, and shows nothing
NUMBER = "NUMBER_OF_WORLD"  # a rank's variable; not there where torchrun starts it


def load_adapter() -> Any:
    """The adapter under test."""
    import importlib

    module, _, name = ADAPTER.rpartition(":")
    found = getattr(importlib.import_module(module), name)
    return found() if isinstance(found, type) else found


def watch(limit: float, rank: int) -> threading.Timer:
    """End this process, with the stacks of all its threads, when `limit` seconds have passed; it can be cancelled."""

    def give_up() -> None:
        print(f"rank {rank} has not ended after {limit:.0f} s; its threads stand here:", file=sys.stderr)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(STUCK)

    timer = threading.Timer(limit, give_up)
    timer.daemon = True
    timer.start()
    return timer
