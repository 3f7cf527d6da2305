"""Combines what ranks recorded of their execution, and counts it function by function with coverage.py."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from pipeconform.errors import UsageError
from pipeconform.execute.coverage import SOURCES, Sources, data_files
from pipeconform.report.coverage import Coverage, CoveredFile, NotEntered

__all__ = ["coverage_in", "require_coverage"]


def require_coverage() -> None:
    """Raise UsageError if coverage.py is not installed."""
    if find_spec("coverage") is None:
        raise UsageError("--coverage needs coverage.py: python -m pip install 'pipeconform[coverage]'")


def coverage_in(folder: Path) -> Coverage | None:
    """What the ranks that wrote to `folder` executed; None if no rank executed a case."""
    import coverage

    try:
        sources = msgspec.json.decode((folder / SOURCES).read_bytes(), type=Sources)
    except FileNotFoundError:
        return None
    with tempfile.TemporaryDirectory(dir=folder) as place:
        combined = coverage.Coverage(
            data_file=f"{place}/combined", branch=True, config_file=False, messages=False
        )
        combined.set_option("report:ignore_errors", True)  # a file that no longer parses is left out
        combined.combine(data_files(folder), keep=True)
        report = Path(place) / "report.json"
        combined.json_report(morfs=list(sources.files.values()), outfile=str(report))
        measured = json.loads(report.read_bytes())["files"]
    by_path = {str(Path(name).resolve()): one for name, one in measured.items()}
    found = ((name, by_path.get(str(Path(path).resolve()))) for name, path in sources.files.items())
    return Coverage(
        packages=sources.packages,
        files=tuple(_file(name, one["functions"]) for name, one in found if one is not None),
    )


def _file(name: str, regions: Mapping[str, Any]) -> CoveredFile:
    """One file, by its regions: functions by name, and what is outside them under the empty name."""
    functions = {key: one for key, one in regions.items() if key and one["summary"]["num_statements"]}
    return CoveredFile(
        name=name,
        lines=sum(one["summary"]["num_statements"] for one in functions.values()),
        branches=sum(one["summary"]["num_branches"] for one in functions.values()),
        missing_lines=tuple(sorted(line for one in functions.values() for line in one["missing_lines"])),
        missing_branches=tuple(
            sorted((begin, end) for one in functions.values() for begin, end in one["missing_branches"])
        ),
        functions=len(functions),
        not_entered=tuple(
            NotEntered(name=key, line=one["start_line"], lines=one["summary"]["num_statements"])
            for key, one in functions.items()
            if not one["summary"]["covered_lines"]
        ),
    )
