"""How many values each requirement compares in each honest evidence, in counted.json.

The numbers are only a memory: one that changes says that a judgement looks at more, or at less, than it did. Run
``python -m tests.judge.counted`` where that is meant, and look at what changed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from pipeconform.bounds.gauge import Gauge
from pipeconform.judge.registry import JUDGEMENTS
from tests.judge.grid import EVIDENCE, evidence_of, judging

__all__ = ["counted", "remembered"]

_FILE = Path(__file__).with_suffix(".json")


def counted(name: str) -> Mapping[str, int]:
    """By requirement, what it compares in one evidence, in which it must not find anything."""
    found = {}
    for requirement in judging(name):
        made = dataclasses.replace(evidence_of(name), gauge=Gauge())
        assert list(JUDGEMENTS[requirement].judge(made)) == []
        found[requirement] = made.gauge.compared
    return found


def remembered() -> Mapping[str, Mapping[str, int]]:
    """The same of every evidence, as it was."""
    known: dict[str, dict[str, int]] = json.loads(_FILE.read_text())
    return known


if __name__ == "__main__":
    rows = (f"{json.dumps(name)}: {json.dumps(counted(name))}" for name in EVIDENCE)
    _FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
