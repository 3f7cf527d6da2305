"""The page about the product's own mutants, from records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmarks.own_mutants.running import Record

__all__ = ["page"]


def page(records: Iterable[Record], *, seed: int, equivalent: Mapping[str, str], within: str = "") -> str:
    """Markdown: a table per module, then every survivor."""
    records = list(records)
    proved = [one for one in records if not one.noticed and one.name in equivalent]
    alive = [one for one in records if not one.noticed and one.name not in equivalent]
    judged = len(records) - len(proved)
    place = f", within `{within}`" if within else ""
    share = f"{(judged - len(alive)) / judged:.1%}" if judged else "none"
    lines = [
        "# Mutants of the product",
        "",
        "Small mistakes put into the code that gives verdicts, by rule and drawn by a seed, and whether the fast",
        "tests that reach the line and start no process notice them: a condition turned round, a statement or a",
        "link of a judgement left out, the first or last round of a loop skipped, `and` for `or`, a comparison off",
        "by one, a bound a thousand times as wide. `make mutants` draws, runs and writes this page;",
        "[the kill matrix](kill-matrix.md) is about mutants of the reference, and whether the *suite* notices those.",
        "",
        f"Seed {seed}{place}: {len(records)} mutants were drawn; equivalent are {len(proved)}. Of the others "
        f"{share} were noticed.",
        "",
        "| module | drawn | equivalent | noticed | survive |",
        "|---|---|---|---|---|",
    ]
    by = {
        name: Counter(one.module for one in group)
        for name, group in (("all", records), ("same", proved), ("alive", alive))
    }
    for module in sorted(by["all"]):
        drawn, same, left = (by[name][module] for name in ("all", "same", "alive"))
        short = module.removeprefix("pipeconform.")
        lines.append(f"| `{short}` | {drawn} | {same} | {drawn - same - left} | {left} |")
    if alive:
        lines += ["", "## Survivors", ""]
        lines += [f"- {_told(one)}" for one in sorted(alive, key=lambda one: (one.module, one.line))]
    if proved:
        lines += ["", "## Equivalent", ""]
        lines += [
            f"- {_told(one)}. {equivalent[one.name]}" for one in sorted(proved, key=lambda one: one.name)
        ]
    return "\n".join(lines) + "\n"


def _told(one: Record) -> str:
    change = f"`{one.name}` {one.operator} in `{one.where}`: {_code(one.before)} became {_code(one.after)}"
    if one.noticed or one.left:
        return change + (f" ({one.left} tests that reach it were not run)" if one.left else "")
    return change if one.tests else f"{change} (only tests with processes reach it)"


def _code(text: str) -> str:
    """The first line that says something, in backquotes."""
    line = text.strip().splitlines()[0]
    return (
        f"`{line[:100].replace('`', chr(39))}{'…' if len(line) > 100 or len(text.splitlines()) > 1 else ''}`"
    )
