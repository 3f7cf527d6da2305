"""Tests that take long take turns in `make test`: a fifth of them runs, another one each time, and one of each file.

    python -m tests.turns build/junit.xml

writes ``turns.json``, the functions whose tests take long on average, from what a run of all of them has measured:
``python -m pytest -n 2 --dist loadgroup -m "not slow" --junitxml build/junit.xml tests``. Five numbers have them all.
While you work, and in `make test-full`, all of them run.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

import pytest

from tests.tenths import part_of

__all__ = ["long_functions", "take"]

PARTS = 5
LONG = 0.2
"""Seconds of a test beside another one, on two cores. Importing torch takes two, a world on ranks that stay less."""
KEPT = Path(__file__).with_name("turns.json")


def take(items: Iterable[pytest.Item], *, number: int, long: Iterable[str]) -> None:
    """Let only the tests of a fifth (of the number's remainder), and one of each file, be quick ones."""
    functions = frozenset(long)
    by_file: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _function(item.nodeid) in functions and not item.get_closest_marker("slow"):
            by_file[item.nodeid.partition("::")[0]].append(item)
    for found in by_file.values():
        chosen = [item for item in found if part_of(item.nodeid, parts=PARTS) == number % PARTS]
        chosen = chosen or [found[number % len(found)]]
        for item in found:
            if item not in chosen:
                item.own_markers.append(pytest.mark.slow.mark)


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0].partition("@")[0]


def long_functions(report: Path) -> Iterator[str]:
    """The functions whose tests take long on average, of a JUnit file."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/")
        seconds[_function(f"{file}.py::{case.get('name', '')}")].append(float(case.get("time", "0")))
    return (name for name, times in seconds.items() if mean(times) >= LONG)


def kept() -> tuple[str, ...]:
    """The functions that were measured last."""
    return tuple(json.loads(KEPT.read_text("utf-8")))


if __name__ == "__main__":
    KEPT.write_text(json.dumps(sorted(set(long_functions(Path(sys.argv[1])))), indent=1) + "\n", "utf-8")
