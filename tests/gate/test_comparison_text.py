"""A comparison in each of its formats, compared as text."""

from pathlib import Path

import msgspec
import pytest

from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_text import FORMATS, render_comparison
from pipeconform.report.causes.known import Known


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
    side = """toy GPipe 1.0 (torch), 2026-01-02 03:04 UTC
     standard 0.1, pipeconform 0.1.0, torch 2.13.0, cpu, profile smoke, seed 0, all requirements under GPipe"""

    assert (
        render_comparison(worse, "text")
        == f"""\
old: {side}, 1F1B
new: {side}, 1F1B

regressed (2 cells):
  TRN-4 under GPipe, 1F1B: passed → failed, failed: output value; is 50% off
      pipeconform replay TRN-4:GPipe:default:1f3a --impl torch

no longer judged (1 cell):
  FWD-1 under GPipe: passed → absent, no longer judged: absent

fixed (1 cell):
  FWD-2 under GPipe: failed → passed, failed: output value; the output of microbatch 0 is not the reference's

causes (1 fixed, 0 worse, 1 new):
  new: TRN-4 Accumulation over steps: output value under GPipe, 1F1B (silently wrong)
  fixed: FWD-2 Order and length of the merged output: output value under GPipe (silently wrong)

blocked: causes: 1 fixed, 0 worse, 1 new; 2 cells regressed, 1 no longer judged, 1 fixed, 0 unchanged; \
0 violations in both"""
    )


@pytest.fixture
def narrower(make):
    """One regression, and a new run that was asked for one requirement only."""
    met = [make.cell(f"FWD-{n}", one) for n in range(1, 10) for one in ("GPipe", "1F1B")]
    old = make.result(*met, make.cell("TRN-4", "GPipe"))
    new = make.result(make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe")))
    return compare(old, make.changed(new, run=make.changed(new.run, selection="TRN-4")))


def test_coverage_that_is_lost_for_one_reason_is_told_in_one_line(narrower):
    text = render_comparison(narrower, "text")

    assert "requirements TRN-4 under GPipe\n" in text
    assert (
        "no longer judged (18 cells):\n"
        "  not selected in the new run (--requirements TRN-4): 18 cells of 9 requirements (FWD 9)\n\n"
    ) in text
    assert render_comparison(narrower, "github").count("::error title=no longer judged") == 1
    assert (
        "| 9 requirements (FWD 9) | GPipe, 1F1B | passed → absent | not selected in the new run "
        "(--requirements TRN-4) | selection |"
    ) in render_comparison(narrower, "markdown")


def test_what_is_judged_on_less_is_told_by_reason(make):
    old = make.result(*(make.cell(f"FWD-{n}", "GPipe", judgements=4 + n) for n in range(1, 4)))
    new = make.result(*(make.cell(f"FWD-{n}", "GPipe", judgements=4) for n in range(1, 4)))
    text = render_comparison(compare(old, new), "text")

    assert (
        "judged on less (3 cells):\n  fewer examples: 3 cells of 3 requirements (FWD-1, FWD-2, FWD-3)\n"
        in text
    )


def test_the_heading_says_what_became_of_the_implementation(make):
    result = make.result(make.cell("FWD-1", "GPipe"))

    def told(**fields):
        new = make.changed(result, implementation=make.changed(result.implementation, **fields))
        return render_comparison(compare(result, new, files=(Path("a.json"), Path("b/result.json"))), "text")

    assert "\nnew: b/result.json: toy GPipe 1.0 (my.py:Mine), 2026-" in told(reference="my.py:Mine")
    assert "\nthe implementation changed: adapter torch → my.py:Mine\n" in told(reference="my.py:Mine")
    assert (
        "\nthe implementation changed: release toy GPipe 1.0 → toy GPipe 1.1, another adapter source\n"
        in told(version="1.1", source_digest="ab")
    )


def test_the_heading_tells_what_is_known_of_an_adapter_and_no_more(make):
    result = make.result(make.cell("FWD-1", "GPipe"))

    def told(**fields):
        same = make.changed(result, implementation=make.changed(result.implementation, **fields))
        return render_comparison(compare(same, same), "text")

    assert (
        told(source_digest="ab").count("implementation: the same version, and the same adapter source") == 1
    )
    assert "the same adapter source" not in told()
    assert "\nnew: toy GPipe 1.0, 2026-" in told(reference="")
    assert "\nnew: torch 1.0, 2026-" in told(name="torch", reference="torch")


@pytest.mark.parametrize("short", ["old", "new"])
def test_a_run_that_was_cut_short_is_named(make, short):
    whole = make.result(make.cell("FWD-1", "GPipe"))
    cut = make.result(make.cell("FWD-1", "GPipe"), complete=False)
    text = render_comparison(compare(cut, whole) if short == "old" else compare(whole, cut), "text")

    assert f"the {short} run was cut short: cells that it did not reach are missing" in text
    assert text.count("was cut short") == 1


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

    assert text.startswith("### pipeconform: blocked: causes: 0 fixed, 0 worse, 1 new; 1 cell regressed, ")
    assert (
        "| TRN-4 Accumulation over steps | GPipe | passed → failed | failed: output value; a \\| b &lt;c> "
        "| implementation |"
    ) in text


def test_markdown_tells_what_plain_text_tells_with_a_table_for_each_kind(worse):
    end = "  "  # of a line that Markdown would join with the next
    side = f"""toy GPipe 1.0 (torch), 2026-01-02 03:04 UTC{end}
standard 0.1, pipeconform 0.1.0, torch 2.13.0, cpu, profile smoke, seed 0, all requirements under GPipe"""
    head = """
| requirement | schedules | was → is | what | cause |
|---|---|---|---|---|"""

    assert (
        render_comparison(worse, "markdown")
        == f"""\
### pipeconform: blocked: causes: 1 fixed, 0 worse, 1 new; 2 cells regressed, 1 no longer judged, 1 fixed, \
0 unchanged; 0 violations in both

old: {side}, 1F1B{end}
new: {side}, 1F1B{end}

**regressed** (2 cells)
{head}
| TRN-4 Accumulation over steps | GPipe, 1F1B | passed → failed | failed: output value; is 50% off \
| implementation |

**no longer judged** (1 cell)
{head}
| FWD-1 Outputs | GPipe | passed → absent | no longer judged: absent | implementation |

**fixed** (1 cell)
{head}
| FWD-2 Order and length of the merged output | GPipe | failed → passed | failed: output value; the output of \
microbatch 0 is not the reference's | implementation |

**causes** (1 fixed, 0 worse, 1 new)

- new: TRN-4 Accumulation over steps: output value under GPipe, 1F1B (silently wrong)
- fixed: FWD-2 Order and length of the merged output: output value under GPipe (silently wrong)"""
    )


def test_what_is_judged_and_met_for_the_first_time_is_told_in_every_format(make):
    old = make.result(make.cell("TRN-4", "GPipe"))
    added = compare(old, make.result(*old.cells, make.cell("FWD-1", "GPipe")))

    assert "newly judged, and met (1 cell):\n  FWD-1 under GPipe: absent → passed" in render_comparison(
        added, "text"
    )
    assert "**newly judged, and met** (1 cell)" in render_comparison(added, "markdown")
    assert "::notice title=newly judged%2C and met::FWD-1 under GPipe" in render_comparison(added, "github")


def many(make, number):
    """Two results, of which the new one has so many violations that the old one did not have."""
    wrong = [make.violation("TRN-4", "GPipe", signature=f"wrong {n:02}") for n in range(number)]
    return compare(make.result(make.cell("TRN-4", "GPipe")), make.result(make.cell("TRN-4", "GPipe", *wrong)))


@pytest.mark.parametrize(("number", "more"), [(50, None), (51, 1), (60, 10)])
def test_more_than_fifty_entries_of_a_kind_are_counted(make, number, more):
    text, table = (render_comparison(many(make, number), style) for style in ("text", "markdown"))
    told, rows = text.partition("\n\ncauses")[0], table.partition("**causes**")[0]

    assert told.count("passed → failed") == rows.count("passed → failed") == 50
    assert ("more" in told, "more" in rows) == (more is not None, more is not None)
    if more is not None:
        assert told.endswith(f"\n  … and {more} more")
        assert rows.rstrip().endswith(f"\n| … | {more} more | | | |")


@pytest.mark.parametrize(
    ("schedules", "told"),
    [
        (("GPipe", "1F1B", "LoopedBFS"), "output value under GPipe, 1F1B, LoopedBFS (silently"),
        (("GPipe", "1F1B", "LoopedBFS", "DualPipeV"), "output value under 4 schedules (silently"),
    ],
)
def test_four_schedules_of_a_cause_are_counted(make, schedules, told):
    old = make.result(*(make.cell("TRN-4", one) for one in schedules))
    new = make.result(*(make.cell("TRN-4", one, make.violation("TRN-4", one)) for one in schedules))

    assert told in render_comparison(compare(old, new), "text")


KNOWN = Known(
    id="7",
    title="outputs are lost",
    link="https://example.org/7",
    requirements=("FWD-1", "FWD-2"),
    signature="^output",
    file="k.toml",
)


def cause_between(make, before, after):
    """The line about the cause that violates these requirements before and after, if it is to be told."""

    def result(names):
        violated = {
            name: (make.violation(name, "GPipe"),) if name in names else () for name in ("FWD-1", "FWD-2")
        }
        return make.result(*(make.cell(name, "GPipe", *wrong) for name, wrong in violated.items()))

    text = render_comparison(compare(result(before), result(after), known=[KNOWN]), "text")
    return next((line.strip() for line in text.splitlines() if "finding 7" in line), None)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([], ["FWD-1"], "new: {}"),
        (["FWD-1"], [], "fixed: {}"),
        (["FWD-1"], ["FWD-1"], None),
        (["FWD-1"], ["FWD-1", "FWD-2"], "worse: {}; now also in FWD-2"),
        (["FWD-1", "FWD-2"], ["FWD-1"], "as before: {}; no longer in FWD-2"),
    ],
)
def test_a_cause_is_told_with_its_finding_and_the_requirements_that_it_came_to_and_left(
    make, before, after, told
):
    cause = "FWD-1 Outputs: output value under GPipe (silently wrong), known as finding 7: outputs are lost"

    assert cause_between(make, before, after) == (told and told.format(cause))


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
    assert "the environment changed: torch 2.13.0 → 2.13.1" in text
    assert "the new run was cut short" in text


@pytest.fixture
def moved(make):
    """Compares a result with one of another torch in which TRN-4 fails, and what else differs."""
    ran = make.result(make.cell("TRN-4", "GPipe"))
    ran = make.changed(ran, implementation=make.changed(ran.implementation, source_digest="ab"))
    wrong = make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe"))

    def compared(*, before=ran, environment=None, implementation=None, **changes):
        other = {"torch": "2.14.1+cpu"} | (environment or {})
        new = make.changed(before, environment=make.changed(before.environment, **other), cells=(wrong,))
        return compare(
            before,
            make.changed(
                new, implementation=make.changed(new.implementation, **implementation or {}), **changes
            ),
        )

    return compared


def test_what_changed_with_torch_alone_is_said_to_be_because_of_it(moved):
    text = render_comparison(moved(), "text")

    assert "\n  TRN-4 under GPipe: passed → failed, failed: output value; " in text
    assert " is not the reference's [torch changed]\n" in text
    because = "; 1 of 1 change because torch changed (2.13.0 → 2.14.1+cpu), and the adapter did not"
    assert text.endswith(because)
    assert because in render_comparison(moved(), "github")
    assert "| torch |" in render_comparison(moved(), "markdown")


def test_torchs_own_pipelining_has_torchs_version_and_changes_with_it(moved, make):
    old = make.result(make.cell("TRN-4", "GPipe"))
    before = make.changed(
        old, implementation=make.changed(old.implementation, version="2.13.0+cpu", source_digest="ab")
    )

    assert [one.cause for one in moved(before=before, implementation={"version": "2.14.1"}).changes] == [
        "torch"
    ]


@pytest.mark.parametrize(
    "differs",
    [
        {"environment": {"torch": "2.13.0"}},
        {"environment": {"python": "3.12.1"}},
        {"environment": {"device": "cuda"}},
        {"implementation": {"version": "1.1"}},
        {"implementation": {"source_digest": "cd"}},
        {"implementation": {"source_digest": ""}},
        {"product_version": "0.2.0"},
        {"rules": {"TRN-4": "bb"}, "standard_version": "0.2"},
    ],
    ids=str,
)
def test_what_changed_with_something_else_is_not_said_to_be_because_of_torch(moved, differs):
    assert "torch changed" not in render_comparison(moved(**differs), "text")


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
    assert text.endswith("; 1 of 1 change because the rules changed")
