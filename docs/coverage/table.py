"""Write which branches of torch's pipelining a run executed into the page about coverage.

    python docs/coverage/table.py RESULT…

The results are of runs with ``--coverage`` at profile core: what one of them executed counts. What the page needs of
them is kept beside this file, in ``torch-VERSION.json``; ``torch-VERSION.toml`` is written by hand and has the
branches that no use of torch can execute, with the reason for each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeconform.report.coverage import CoveredFile
from pipeconform.report.result import read_result

__all__ = ["BEGIN", "END", "FILES", "PAGE", "executed_after_all", "kept_of", "page_with", "reasons", "table"]

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "coverage.md"
BEGIN, END = "<!-- branches -->", "<!-- end of branches -->"
VERSION = "2.13.0"
FILES = ("stage.py", "schedules.py", "_backward.py", "microbatch.py", "_utils.py")
GOAL = 92
"""Per cent of the branches that can be executed."""

Kept = dict[str, dict[str, Any]]
"""By file: how many ``lines`` and ``branches`` there are inside functions, and which are missing."""
Reasons = dict[str, dict[str, str]]
"""By file and branch (``17-19``), the kind of reason why it cannot be executed."""


def kept_of(paths: Sequence[Path]) -> Kept:
    """What is kept of results: what none of them executed.

    Raises:
        SystemExit: one has no coverage.
    """
    found: dict[str, list[CoveredFile]] = {}
    for path in paths:
        coverage = read_result(path).coverage
        if coverage is None:
            sys.exit(f"{path} has no coverage: judge with --coverage")
        for one in coverage.files:
            found.setdefault(one.name.rpartition("/")[2], []).append(one)
    return {name: _together(found[name]) for name in FILES}


def _together(files: Sequence[CoveredFile]) -> dict[str, Any]:
    first, *others = files
    lines = set(first.missing_lines).intersection(*(one.missing_lines for one in others))
    entered = [{one.name for one in each.not_entered} for each in files]
    return {
        "lines": first.lines,
        "branches": first.branches,
        "missing_lines": len(lines),
        "missing": [
            f"{a}-{b}"
            for a, b in first.missing_branches
            if all((a, b) in map(tuple, one.missing_branches) for one in others)
        ],
        "functions": first.functions,
        "not_entered": len(set.intersection(*entered)),
    }


def reasons() -> tuple[Mapping[str, str], Reasons]:
    """The kinds of reasons in words, and the kind of each branch that cannot be executed."""
    read = tomllib.loads((HERE / f"torch-{VERSION}.toml").read_text("utf-8"))
    found: Reasons = {}
    for entry in read["unreachable"]:
        own = found.setdefault(entry["file"], {})
        own |= dict.fromkeys(entry["branches"], entry["kind"])
    return read["kinds"], found


def executed_after_all(kept: Kept, found: Reasons) -> list[str]:
    """The branches that have a reason, and were executed."""
    return [
        f"{file} {branch}"
        for file, own in found.items()
        for branch in own
        if branch not in kept[file]["missing"]
    ]


def table(kept: Kept, kinds: Mapping[str, str], found: Reasons) -> str:
    """The part of the page."""
    lines = [
        "| file | lines | branches | cannot be executed | of the others | functions not entered |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    sums: Counter[str] = Counter()
    for file in FILES:
        own, missing = kept[file], kept[file]["missing"]
        never = len(found.get(file, {}))
        row = {
            "lines": own["lines"],
            "executed_lines": own["lines"] - own["missing_lines"],
            "branches": own["branches"],
            "executed": own["branches"] - len(missing),
            "never": never,
            "functions": own["functions"],
            "not_entered": own["not_entered"],
        }
        sums.update(row)
        lines.append(_row(f"`{file}`", row))
    lines.append(_row("all", sums))
    share = 100 * sums["executed"] / (sums["branches"] - sums["never"])
    counted = Counter(kind for own in found.values() for kind in own.values())
    lines += [
        "",
        f"Goal: {GOAL} % of the branches that can be executed; {'met' if share >= GOAL else 'missed'}: {share:.1f} %. "
        f"The {sums['never']} that cannot (each is listed with its kind in "
        f"[torch-{VERSION}.toml](coverage/torch-{VERSION}.toml)):",
        "",
        *(f"- {counted[kind]}: {words}" for kind, words in kinds.items()),
    ]
    return "\n".join(lines)


def _row(name: str, row: Mapping[str, int]) -> str:
    can = row["branches"] - row["never"]
    return (
        f"| {name} | {_share(row['executed_lines'], row['lines'])} | {_share(row['executed'], row['branches'])} | "
        f"{row['never']} | {_share(row['executed'], can)} | {row['not_entered']} of {row['functions']} |"
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} of {whole:,}".replace("%", " %")


def page_with(text: str, part: str) -> str:
    """The page's text with this part between the marks."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{part}\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep what a result says, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+", metavar="RESULT")
    kept = kept_of(parser.parse_args(arguments).results)
    kinds, found = reasons()
    if wrong := executed_after_all(kept, found):
        sys.exit(f"these branches have a reason why they cannot be executed, and were: {', '.join(wrong)}")
    (HERE / f"torch-{VERSION}.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    PAGE.write_text(page_with(PAGE.read_text("utf-8"), table(kept, kinds, found)), "utf-8")


if __name__ == "__main__":
    main()
