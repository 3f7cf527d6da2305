"""The page docs/judged-fields.md: every recorded field, and which requirements notice a fault in it.

``make standard`` writes it; a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeconform.observe.observation import Observation
from tests.judge.charges import CHARGES, NO_VERDICT, OTHER_STEPS
from tests.judge.spoiling import every_field

__all__ = ["page"]

_KINDS = ("Train", "Eval", "Zero", "Optimize", "Load", "Freeze")
_INTRODUCTION = """\
# Which requirement judges which recorded field

Everything that ranks record, and the requirements whose judgement notices a fault in it: a value by one bit beyond its
bound, one missing, one more, another shape, dtype or order, at every step, rank, stage and microbatch. The tests make
these changes from the records' types (`tests/judge/spoiling.py`) and hold this table; a field that no requirement
judges, and that has no reason for it here, fails them. Written by
`python -m tests.judge.fields_page docs/judged-fields.md`.

| field | in | judged by |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows: dict[tuple[str, str], list[str]] = {}
    for requirement, places in CHARGES.items():
        for place in sorted(places):
            name, _, how = place.partition(" ")
            field, _, kind = name.partition("@")
            rows.setdefault((field, kind), []).append(requirement + (f" ({how})" if how else ""))
    for place in NO_VERDICT:
        field, _, kind = place.partition("@")
        rows.setdefault((field, kind), [])
    lines = []
    for field in sorted(every_field(Observation)):
        for kind in ("", *_KINDS):
            if (field, kind) not in rows:
                continue
            place = f"{field}@{kind}" if kind else field
            words = ", ".join(rows[field, kind]) or f"– {NO_VERDICT[place]}"
            lines.append(f"| `{field}` | {kind.lower() or '–'} | {words} |")
    others = [f"`{field}`: {reason}." for field, reason in OTHER_STEPS.items()]
    return "\n".join(
        [_INTRODUCTION + "\n".join(lines), "", "After other steps than these:", "", *_items(others), ""]
    )


def _items(texts: list[str]) -> list[str]:
    return [f"- {text}" for text in texts]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
