"""A simulated table as Chrome trace events; open the file in Perfetto or chrome://tracing.

Ranks are processes with one thread for computations and one for communication; actions that take no time are
instants. An arrow leads from every computation to the one on another rank that uses its result, and a counter shows the
activations that a rank holds.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from pipeconform.schedule.actions import COMMUNICATION, Kind
from pipeconform.schedule.dependencies import Index, locate
from pipeconform.schedule.memory import in_flight_after
from pipeconform.schedule.simulator import Simulation
from pipeconform.schedule.table import ranks_of_rows, rows_of

_COMPUTE_THREAD, _COMMUNICATION_THREAD = 0, 1


def to_chrome_trace(simulation: Simulation, *, microseconds_per_unit: float = 1000.0) -> str:
    """The trace as JSON; one cost unit is drawn as ``microseconds_per_unit``."""
    table = simulation.table
    ranks = ranks_of_rows(table).tolist()
    starts = (simulation.start * microseconds_per_unit).tolist()
    ends = (simulation.end * microseconds_per_unit).tolist()
    transfers = rows_of(table, COMMUNICATION).tolist()
    held = in_flight_after(table).tolist()
    changes = rows_of(table, (Kind.F, Kind.W, Kind.B)).tolist()
    events: list[dict[str, Any]] = [
        _name(rank, thread) for rank in range(table.num_ranks) for thread in (0, 1)
    ]
    for row, rank in enumerate(ranks):
        action = table.action_at(row)
        place = {
            "pid": rank,
            "tid": _COMMUNICATION_THREAD if transfers[row] else _COMPUTE_THREAD,
            "ts": starts[row],
        }
        args = {"stage": action.stage, "microbatch": action.microbatch, "row": row}
        category = "communication" if transfers[row] else "computation"
        shape: dict[str, Any] = {"ph": "X", "dur": ends[row] - starts[row]}
        if transfers[row] and ends[row] == starts[row]:
            shape = {"ph": "i", "s": "t"}
        events.append({"name": str(action), **place, **shape, "cat": category, "args": args})
        if changes[row]:
            events.append(
                {"name": "in flight", "ph": "C", "pid": rank, "ts": starts[row], "args": {"held": held[row]}}
            )
    events += _flows(simulation, ranks, starts)
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}).decode()


def _name(rank: int, thread: int) -> dict[str, Any]:
    if thread == _COMPUTE_THREAD:
        return {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
    name = {"name": "communication"}
    return {"name": "thread_name", "ph": "M", "pid": rank, "tid": _COMMUNICATION_THREAD, "args": name}


def _flows(simulation: Simulation, ranks: list[int], starts: list[float]) -> list[dict[str, Any]]:
    table, index = simulation.table, locate(simulation.table)
    flows: list[dict[str, Any]] = []
    for user in np.flatnonzero(simulation.needed.data >= 0).tolist():
        maker = _maker(index, int(simulation.needed.data[user]))
        if maker < 0:
            continue
        common = {
            "cat": "transfer",
            "name": f"{table.action_at(maker)} to {table.action_at(user)}",
            "id": user,
        }
        for phase, row in (("s", maker), ("f", user)):
            end = {"pid": ranks[row], "tid": _COMPUTE_THREAD, "ts": starts[row], "ph": phase}
            flows.append({**common, **end, **({"bp": "e"} if phase == "f" else {})})
    return flows


def _maker(index: Index, row: int) -> int:
    """The computation whose result a row brings: its own, or the one that a send follows; −1 for none."""
    table = index.table
    kinds = {Kind.SEND_F: (Kind.F,), Kind.SEND_B: (Kind.B, Kind.I)}.get(Kind(int(table.kinds[row])))
    if kinds is None:
        return row
    stage, microbatch = int(table.stages[row]), int(table.microbatches[row])
    return max(int(index.all_of(kind)[stage, microbatch]) for kind in kinds)
