"""docs/schedules.md shows what is really printed, drawn and judged.

``python -m tests.docs.test_schedules`` writes the commands' output, the tables and the picture anew.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeconform.cli import main
from pipeconform.commands.schedule_text import family_rows
from pipeconform.schedule import draw_svg, families, generate, simulate, verify, verify_named
from tests.schedule.torch_tables import declared, lowered

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "schedules.md"
PICTURE = DOCS / "schedules" / "zb_v.svg"

CONSOLE = re.compile(r"```console\n\$ pipeconform (?P<command>[^\n]*)\n(?P<printed>.*?)```", re.DOTALL)
WRITTEN = re.compile(r"<!-- (?P<name>\w+): written by [^\n]*-->\n(?P<table>.*?)<!-- end -->", re.DOTALL)

TORCH = {
    "GPipe": "gpipe",
    "1F1B": "one_f_one_b",
    "Interleaved1F1B": "interleaved_one_f_one_b",
    "LoopedBFS": "looped_bfs",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
    "ZBVZeroBubble": "zb_v",
    "DualPipeV": "dualpipe_v",
}
SIZES = list(itertools.product((1, 2, 3), (1, 2), (1, 2, 3, 4, 6)))


def printed(command: str) -> str:
    """What a command prints, run in the folder of the documentation; trailing blanks removed."""
    shown = io.StringIO()
    with (
        contextlib.chdir(DOCS),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(shown),
        contextlib.suppress(SystemExit),
    ):
        main(shlex.split(command))
    return "".join(f"{line.rstrip()}\n" for line in shown.getvalue().splitlines())


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def families_table() -> str:
    head = ["name", "title", "placement", "backward", "held on rank r", "idle time", "source"]
    return table(head, [[f"`{name}`", *rest] for name, *rest in family_rows(families())])


def torch_table() -> str:
    rows = []
    for name, family in TORCH.items():
        right: Counter[str] = Counter()
        judged = 0
        for p, v, m in SIZES:
            if name in {"GPipe", "1F1B"} and v > 1:
                continue
            try:
                right["declared"] += not verify_named(declared(name, p=p, v=v, m=m), name=family)
            except ValueError:  # torch has no such size
                continue
            judged += 1
            if name not in {"GPipe", "1F1B"}:
                right["lowered"] += not verify(lowered(name, p=p, v=v, m=m))
                right["deferred"] += not verify(lowered(name, p=p, v=v, m=m, defer_pp_recv=True))
        columns = ["declared", "lowered", "deferred"]
        cells = [f"{right[column]} of {judged}" if column in right else "–" for column in columns]
        rows.append([name, f"`{family}`", *cells])
    return table(["schedule", "family", "declared", "lowered", "deferred"], rows)


def picture() -> str:
    zb_v = generate("zb_v", num_ranks=4, stages_per_rank=2, num_microbatches=8)
    return draw_svg(simulate(zb_v), title="ZB-V, p = 4, v = 2, m = 8")


MADE: dict[str, Callable[[], str]] = {"families": families_table, "torch": torch_table}


@pytest.mark.parametrize(
    "shown", list(CONSOLE.finditer(PAGE.read_text())), ids=lambda match: match["command"]
)
def test_commands_print_what_is_shown(shown, monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    assert printed(shown["command"]) == shown["printed"]


@pytest.mark.parametrize("shown", list(WRITTEN.finditer(PAGE.read_text())), ids=lambda match: match["name"])
def test_tables_say_what_is_so(shown):
    assert MADE[shown["name"]]() == shown["table"]


def test_everything_that_is_generated_is_in_the_page():
    page = PAGE.read_text()

    assert {match["name"] for match in WRITTEN.finditer(page)} == set(MADE)
    assert len(list(CONSOLE.finditer(page))) == page.count("```console") >= 6


def test_the_picture_is_what_is_drawn():
    assert picture() == PICTURE.read_text()


def write() -> None:
    for name in ("COLUMNS", "FORCE_COLOR"):
        os.environ.pop(name, None)
    page = PAGE.read_text()
    page = CONSOLE.sub(
        lambda m: f"```console\n$ pipeconform {m['command']}\n{printed(m['command'])}```", page
    )
    page = WRITTEN.sub(lambda m: m[0].replace(m["table"] + "<!-- end", MADE[m["name"]]() + "<!-- end"), page)
    PAGE.write_text(page)
    PICTURE.write_text(picture())


if __name__ == "__main__":
    write()
