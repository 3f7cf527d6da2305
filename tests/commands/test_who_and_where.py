"""From a red cell to the line, by commands: terminal, result, page and replay name it; an adapter's mistake is none."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World, encode_case
from pipeconform.case.mistakes import Mistake
from pipeconform.report.result import read_result

HERE = Path(__file__).parents[1] / "campaign"
SMALL = HERE / "small_engine.py"
SMALLEST = ("--schedules", "GPipe", "--ranks", "2", "--examples", "1", "--out", "out")
SOURCE = "return loss / [m][m]"
LINE = 1 + [line.strip() for line in SMALL.read_text().splitlines()].index(SOURCE)
WHERE = f"small_engine.py, line {LINE}, in "
CASE = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="batch", how="scarce")),),
)


def test_the_line_that_raised_stands_everywhere_with_its_source(typed) -> None:
    engine = f"{HERE / 'mistaken_engines.py'}:Indexes"
    code, out, _ = typed("run", "--impl", engine, "--requirements", "TRN-1", *SMALLEST)
    (cell,) = read_result(Path("out/result.json")).cells
    (violation, *_) = cell.violations
    again, replayed, _ = typed("replay", violation.id, "--impl", engine, "--result", "out/result.json")
    page = html.unescape(re.sub(r"<[^>]+>", "", Path("out/report.html").read_text("utf-8")))

    assert (code, again) == (1, 1)
    for told in (out, violation.message, replayed, page):
        assert WHERE in told
        assert SOURCE in told
    assert "/pipeconform/execute/" not in violation.message


@pytest.mark.parametrize("row", ["TRN-1", "ERR-7"])
def test_an_adapter_s_mistake_ends_a_run_before_anything_is_judged(typed, row) -> None:
    adapter = f"{HERE / 'mistaken_adapters.py'}:Undefined"
    code, out, err = typed("run", "--impl", adapter, "--requirements", row, *SMALLEST)

    assert code == 3
    assert "violates" not in out
    assert "NameError: name 'bach' is not defined" in out + err
    assert "fix run() in the adapter's file, line " in out + err

    result = read_result(Path("out/result.json"))
    (cell,) = result.cells
    command = f"pipeconform replay {cell.id} --impl {adapter}"
    code, _, err = typed("replay", cell.id, "--impl", adapter, "--result", "out/result.json")

    assert f"in a debugger with --pdb RANK: {command} --result out/result.json" in out
    assert command in html.unescape(Path("out/report.html").read_text("utf-8"))
    assert (code, err.count("fix run() in the adapter's file, line ")) == (3, 1)


def test_replay_asks_who_is_to_blame_in_chapter_err_too(typed) -> None:
    Path("case.json").write_bytes(encode_case(CASE))
    adapter = f"{HERE / 'mistaken_adapters.py'}:Undefined"
    code, out, err = typed("replay", "case.json", "--impl", adapter, "--requirement", "ERR-7")

    assert code == 3
    assert "REPRODUCED" not in out
    assert "fix run() in the adapter's file, line " in err


TOP = "import no_such_engine\n\n\nclass Adapter: ...\n"
INSIDE = """
from pipeconform.reference_impl.adapter import ReferenceAdapter


class Adapter(ReferenceAdapter):
    def build(self, plan):
        import no_such_engine
"""
CALLED = INSIDE.replace("build(self, plan)", "build(self, plan, options)")
UNKNOWN = INSIDE.replace("build(self, plan)", "describe(self)")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (TOP, 2, "No module named 'no_such_engine' (mine.py, line 1)"),
        (UNKNOWN, 2, "No module named 'no_such_engine' (mine.py, line 7)"),
        (CALLED, 3, "Adapter.build(plan, options) is called as build(plan)"),
        (INSIDE, 3, "mine.py, line 7, in build"),
    ],
)
def test_a_mistake_ends_with_2_where_the_adapter_cannot_be_had_and_with_3_where_it_does_not_work(
    typed, text, code, said
) -> None:
    """As docs/exit-codes.md says; never with 1, which is a verdict."""
    Path("mine.py").write_text(text, "utf-8")
    ended, out, err = typed("run", "--impl", "mine.py:Adapter", "--requirements", "TRN-1", *SMALLEST)

    assert ended == code
    assert said in out + err
    assert "violates" not in out
