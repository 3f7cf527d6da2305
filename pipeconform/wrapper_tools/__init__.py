"""Small tools for tests of data-parallel wrappers, yours included.

Use them inside ranks, such as in a function that `pipeconform.run_on_ranks` calls; see ``docs/wrapper-tools.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeconform.wrapper_tools.collectives import (
        Call,
        Collective,
        Count,
        Place,
        checked,
        counted,
        delayed,
        replaced,
    )
    from pipeconform.wrapper_tools.delays import Delayed
    from pipeconform.wrapper_tools.grids import covering, every_point, name_of, run_each
    from pipeconform.wrapper_tools.stand_in import stand_in_group
    from pipeconform.wrapper_tools.states import (
        assert_equal_states,
        broadcast_state_dict,
        full_parameters,
        zero,
    )

_HOMES = {
    "Call": "collectives",
    "Collective": "collectives",
    "Count": "collectives",
    "Delayed": "delays",
    "Place": "collectives",
    "assert_equal_states": "states",
    "broadcast_state_dict": "states",
    "checked": "collectives",
    "counted": "collectives",
    "covering": "grids",
    "delayed": "collectives",
    "every_point": "grids",
    "full_parameters": "states",
    "name_of": "grids",
    "replaced": "collectives",
    "run_each": "grids",
    "stand_in_group": "stand_in",
    "zero": "states",
}

__all__ = [
    "Call",
    "Collective",
    "Count",
    "Delayed",
    "Place",
    "assert_equal_states",
    "broadcast_state_dict",
    "checked",
    "counted",
    "covering",
    "delayed",
    "every_point",
    "full_parameters",
    "name_of",
    "replaced",
    "run_each",
    "stand_in_group",
    "zero",
]


def __getattr__(name: str) -> Any:
    """Load a tool on first use, since grids need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
