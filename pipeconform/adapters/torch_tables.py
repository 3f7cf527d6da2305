"""Tables of torch's schedules: those that they declare, and those that a user loads."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

from torch.distributed.pipelining import schedules

from pipeconform.adapters import torch_release

__all__ = ["declared_table", "load_table", "written_table"]


def declared_table(schedule: Any) -> str | None:
    """``pipeline_order`` of a multi-stage schedule, else the order in its documentation; None if it has none."""
    several = isinstance(schedule, schedules.PipelineScheduleMulti)
    order = schedule.pipeline_order if several else schedule._get_pipeline_order()
    if order is None:
        return None
    text = io.StringIO()
    csv.writer(text).writerows(torch_release.without_waits(order[rank]) for rank in sorted(order))
    return text.getvalue()


def load_table(schedule: Any, text: str, *, form: str = "compute_only") -> None:
    """Give a runtime an order of computing: torch reads it from a file, and adds sends and receives if it has none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        path.write_text(text, newline="")
        schedule._load_csv(str(path), format=form)


def written_table(schedule: Any, *, form: str) -> str:
    """What a runtime will do, as torch writes it to a file: with sends and receives in ``compute_comms``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.csv")
        schedule._dump_csv(str(path), format=form)
        return path.read_text()
