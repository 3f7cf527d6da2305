"""A comparison in each of its formats, compared as text."""

import msgspec
import pytest

from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_text import FORMATS, render_comparison


@pytest.fixture
def worse(make):
    """A regression under two schedules, a lost cell and a fix."""
    old = make.result(
        make.cell("TRN-4", "GPipe"),
        make.cell("TRN-4", "1F1B"),
        make.cell("FWD-1", "GPipe"),
        make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe")),
    )
    message = "is 50% off\nin | every | way"
    new = make.result(
        make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe", message=message)),
        make.cell("TRN-4", "1F1B", make.violation("TRN-4", "1F1B", message=message)),
        make.cell("FWD-2", "GPipe"),
    )
    return compare(old, new)


def test_plain_text_tells_the_same_change_under_two_schedules_once(worse):
    side = "toy GPipe 1.0, standard 0.1, pipeconform 0.1.0, torch 2.13.0, cpu, profile smoke, seed 0"

    assert (
        render_comparison(worse, "text")
        == f"""\
old: {side}
new: {side}

regressed (2):
  TRN-4 under GPipe, 1F1B: passed → failed, failed: output value; is 50% off
      pipeconform replay TRN-4:GPipe:default:1f3a --impl torch

lost coverage (1):
  FWD-1 under GPipe: passed → absent, no longer judged: absent

fixed (1):
  FWD-2 under GPipe: failed → passed, failed: output value; the output of microbatch 0 is not the reference's

causes (1 new, 1 fixed):
  new: TRN-4 Accumulation over steps: output value under GPipe, 1F1B (silently wrong)
  fixed: FWD-2 Order and length of the merged output: output value under GPipe (silently wrong)

blocked: 2 regressed, 1 lost coverage, 1 fixed, 0 cells unchanged, 0 violations in both"""
    )


def test_schedules_are_told_together_only_if_they_were_and_are_alike(make):
    old = make.result(
        make.cell("SCH-8", "GPipe"),
        make.cell("SCH-8", "1F1B"),
        make.cell("SCH-8", "ZBVZeroBubble", make.violation("SCH-8", "ZBVZeroBubble", signature="order")),
    )
    wrong = [
        make.cell("SCH-8", name, make.violation("SCH-8", name)) for name in ("GPipe", "1F1B", "ZBVZeroBubble")
    ]
    text = render_comparison(compare(old, make.result(*wrong)), "text")

    assert "  SCH-8 under GPipe, 1F1B: passed → failed, failed: output value;" in text
    assert "  SCH-8 under ZBVZeroBubble: failed → failed, failed: output value;" in text


def test_markdown_is_a_table_that_its_contents_cannot_break(make):
    cell = make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe", message="a | b <c>"))
    text = render_comparison(compare(make.result(make.cell("TRN-4", "GPipe")), make.result(cell)), "markdown")

    assert text.startswith("### pipeconform: blocked: 1 regressed, ")
    assert (
        "| TRN-4 | GPipe | passed → failed | failed: output value: a \\| b &lt;c> | implementation |" in text
    )


def test_github_gets_one_annotation_per_change_with_its_text_escaped(worse):
    lines = render_comparison(worse, "github").splitlines()

    assert lines[0] == (
        "::error title=pipeconform%3A regressed::TRN-4 under GPipe, 1F1B: passed → failed, "
        "failed: output value; is 50%25 off"
    )
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::notice", "::error"]


def test_json_holds_everything_and_the_decision(worse):
    read = msgspec.json.decode(render_comparison(worse, "json"))

    assert read["blocked"] is True
    assert [change["kind"] for change in read["changes"]] == ["regressed", "regressed", "fixed", "lost"]


@pytest.mark.parametrize("style", FORMATS)
def test_every_format_says_that_nothing_got_worse(make, style):
    result = make.result(make.cell("FWD-1", "GPipe"))
    text = render_comparison(compare(result, result), style)

    assert ("nothing got worse" in text) or ('"blocked": false' in text)


def test_what_else_changed_is_told(make):
    old = make.result(make.cell("FWD-1", "GPipe"))
    environment = msgspec.structs.replace(old.environment, torch="2.13.1")
    new = msgspec.structs.replace(make.result(*old.cells, complete=False), environment=environment)
    text = render_comparison(compare(msgspec.structs.replace(old, standard_version="0.0"), new), "text")

    assert "the rules changed: standard 0.0 → 0.1" in text
    assert "the environment changed: torch 2.13.0 on cpu → torch 2.13.1 on cpu" in text
    assert "the new run was cut short" in text


def test_results_of_two_implementations_are_called_so(make):
    old = make.result(make.cell("FWD-1", "GPipe"))
    other = msgspec.structs.replace(old.implementation, name="another")
    text = render_comparison(compare(old, msgspec.structs.replace(old, implementation=other)), "text")

    assert "the results are of different implementations" in text


def test_failures_by_changed_rules_are_counted_apart(make):
    old = msgspec.structs.replace(make.result(make.cell("TRN-4", "GPipe")), rules={"TRN-4": "aa"})
    new = make.result(make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe")))
    text = render_comparison(compare(old, msgspec.structs.replace(new, rules={"TRN-4": "bb"})), "text")

    assert "[the rule changed]" in text
    assert text.endswith("; 1 of 1 because the rules changed")
