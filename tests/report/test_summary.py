"""The summary at the end of a run: what a person reads is compared as text."""

import io
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from pipeconform.report.cause_text import replay_line
from pipeconform.report.causes import Known
from pipeconform.report.location import DEFAULT_RESULT
from pipeconform.report.overview import overview
from pipeconform.report.result import Control, Expectations, Pairs
from pipeconform.report.summary import render_summary, totals, verdict
from pipeconform.spec import requirement


def printed(result, *, width=80, where=DEFAULT_RESULT, verbose=False, known=None):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render_summary(result, console, where=where, verbose=verbose, known=known)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def table(result, *, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for one in overview(result.cells, width=width):
        console.print(one)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def statement(identifier):
    return textwrap.indent(textwrap.fill(requirement(identifier).statement, 77), "   ")


def test_a_run_with_a_violation_under_two_schedules_is_told_in_full(make):
    small, large = make.case(), make.case(p=3, m=4)
    result = make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe", large)),
        make.cell(
            "FWD-1", "Interleaved1F1B", make.violation("FWD-1", "Interleaved1F1B", small, minimal=False)
        ),
        make.cell("TRN-1", "GPipe"),
        make.cell("TRN-1", "Interleaved1F1B", status="not_claimed", judgements=0),
    )

    expected = f"""\
                         Interleaved
                  GPipe  1F1B
FWD-1  Outputs    FAIL   FAIL
TRN-1  Gradients  ok     –

4 cells: 1 ok, 2 FAIL, 1 not claimed
12 judgements of 1,234 executions; 20 distinct cases, 15 of them with p ≥ 2; 12.3 s

1. FWD-1 Outputs (MUST): FAIL under GPipe, Interleaved1F1B
{statement("FWD-1")}

   output value (step 0, rank 1, microbatch 0)
     the output of microbatch 0 is not the reference's

   smallest case, {small.digest} (not minimal: the budget for shrinking ran out):
     pipeline  GPipe, p = 2, v = 1
     stage 0   Linear
     stage 1   Linear
     model     width 1, float64
     loss      mean mse
     program   train(B = 4, m = 2), zero_grad, train(B = 4, m = 2)
     seed      0
   shown by 4 drawn cases
   pipeconform replay FWD-1:Interleaved1F1B:default:1f3a --impl torch

toy GPipe 1.0 violates 1 of 2 judged requirements: FWD-1
results: pipeconform-results/result.json"""
    assert printed(result) == expected


def test_a_crash_at_one_place_is_one_block_that_names_the_most_basic_requirement(make):
    ended = "rank 0  returned\nrank 1  died      SIGSEGV in stage.py:7 send  <- first failure"
    crash = {
        "status": "crashed",
        "signature": "died: SIGSEGV",
        "message": f"rank 1 died (SIGSEGV)\n{ended}",
        "verdicts": ended,
    }
    result = make.result(
        make.cell("FWD-9", "GPipe", make.violation("FWD-9", "GPipe", **crash)),
        make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", **crash)),
    )

    lines = printed(result).splitlines()

    begin = lines.index("1. TRN-1 Gradients (MUST): CRASH under GPipe")
    assert "   rank 1 died (SIGSEGV)" in lines[begin:]
    assert "   also violates FWD-9 Keyword arguments under GPipe" in lines[begin:]
    assert not any(line.startswith("2. ") for line in lines)


def test_a_cause_s_heading_counts_the_cells_of_the_requirement_that_it_names(make):
    """The schedules that other requirements add stand beside those requirements."""
    known = Known(
        file="k", id="8", title="t", link="l", requirements=("FWD-2", "FWD-24"), signature="length|raised"
    )
    length = {"signature": "output length"}
    raised = {"signature": "raised RuntimeError: no", "status": "error"}
    result = make.result(
        make.cell("FWD-2", "ForwardOnly", make.violation("FWD-2", "ForwardOnly", **length)),
        make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", **raised)),
        make.cell("FWD-2", "LoopedBFS"),
        make.cell("FWD-24", "LoopedBFS", make.violation("FWD-24", "LoopedBFS", **raised)),
        make.cell("LIF-3", "GPipe", make.violation("LIF-3", "GPipe", signature="outputs kept")),
    )
    title = "FWD-2 Order and length of the merged output"

    text = printed(result, known=[known], width=100)

    assert f"1. {title} (MUST): FAIL under ForwardOnly; ERR under GPipe\n" in text
    assert "   also violates FWD-24 Batches refused alike under LoopedBFS\n" in text
    assert f"   1. {title}: output length under ForwardOnly, GPipe\n" in text
    assert "      also violates FWD-24 under LoopedBFS\n" in text


def blocked(make, requirement, by, **others):
    control = Control(
        words="without the delay", digest="d", requirement=by, status="failed", signature="output value"
    )
    return make.violation(requirement, "GPipe", control=control, **others)


def test_what_is_blocked_is_no_accusation_and_is_told_in_a_line_for_each_that_blocks(make):
    result = make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("DPC-6", "GPipe", blocked(make, "DPC-6", "FWD-1"), status="blocked"),
        make.cell("DPC-9", "GPipe", blocked(make, "DPC-9", "FWD-1"), status="blocked"),
    )
    text = printed(result)

    assert "\n2. " not in text
    assert (
        "   blocks DPC-6 Replicas that are late, DPC-9 Synchronised batch norm\n"
        "   pipeconform replay FWD-1:GPipe" in text
    )
    assert text.splitlines()[-3:-1] == [
        "blocked: DPC-6, DPC-9 under GPipe (by FWD-1)",
        "toy GPipe 1.0 violates 1 of 3 judged requirements: FWD-1; 2 more are blocked",
    ]


def test_a_block_says_what_its_control_showed(make):
    passed = Control(words="without the delay", digest="d")
    violation = make.violation("DPC-6", "GPipe", control=passed)

    text = printed(make.result(make.cell("DPC-6", "GPipe", violation)))

    assert "   control: without the delay, the case shows nothing wrong\n" in text


def test_several_causes_are_listed_in_the_order_of_harm(make):
    scaled = (
        "the gradient of stage 0 is not the reference's\nall of stage 0's values are 2 times the reference's"
    )
    result = make.result(
        make.cell("LIF-3", "GPipe", make.violation("LIF-3", "GPipe", signature="outputs kept")),
        make.cell("SCH-7", "GPipe", make.violation("SCH-7", "GPipe", status="hung", signature="hang")),
        make.cell(
            "TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="gradient value", message=scaled)
        ),
    )

    text = printed(result)

    assert text.endswith("""
3 causes in 3 requirements, the most harmful first:
  silently wrong
   1. TRN-1 Gradients: gradient value, m times the reference's under GPipe
  hangs and crashes
   2. SCH-7 Placement: hang under GPipe
  leaks and costs
   3. LIF-3 What stays behind: outputs kept under GPipe

toy GPipe 1.0 violates 3 of 3 judged requirements (3 causes): TRN-1, SCH-7, LIF-3 (only SHOULD: LIF-3)
results: pipeconform-results/result.json""")


def test_a_known_cause_is_told_with_its_title_and_links(make):
    found = make.result(
        make.cell("TRN-4", "GPipe", make.violation("TRN-4", "GPipe", signature="gradient value"))
    )
    torch = make.changed(
        found, implementation=make.changed(found.implementation, name="torch.distributed.pipelining")
    )

    line = (
        "   known as finding 3: A step divides the gradients of earlier steps by m again "
        "(docs/findings/torch-2.13-accumulated-gradients-rescaled.py, "
        "https://github.com/pytorch/torchtitan/issues/1733)\n"
    )
    assert line in printed(torch)
    assert "known as" not in printed(found)


def test_a_headline_is_cut_before_it_fills_the_screen(make):
    violation = make.violation("FWD-1", "GPipe", status="error", message="word " * 100)
    text = printed(make.result(make.cell("FWD-1", "GPipe", violation)))

    assert max(map(len, text.splitlines())) < 230


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ("rank 0  returned\nrank 1  returned", "\n     every rank returned\n"),
        (
            "rank 0  returned\nrank 1  died      SIGKILL",
            "\n     rank 0  returned\n     rank 1  died      SIGKILL\n",
        ),
    ],
)
def test_what_became_of_each_rank_is_shown(make, verdicts, expected):
    violation = make.violation("FWD-1", "GPipe", verdicts=verdicts)

    assert expected in printed(make.result(make.cell("FWD-1", "GPipe", violation)))


def test_ranks_that_the_message_speaks_of_are_not_repeated(make):
    violation = make.violation("FWD-1", "GPipe", message="it died\nrank 0  died", verdicts="rank 0  died")

    assert printed(make.result(make.cell("FWD-1", "GPipe", violation))).count("rank 0  died") == 1


def test_what_ran_is_drawn_with_what_is_wrong_first(make):
    ran = (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1"))
    wrong = make.violation("SCH-2", "1F1B", timeline=ran, first_wrong=(0, 1))

    lines = printed(make.result(make.cell("SCH-2", "1F1B", wrong))).splitlines()

    begin = lines.index("     the computations that ran, per pipeline rank; ^ the first wrong one:")
    assert lines[begin - 1 : begin + 5] == [
        "",
        "     the computations that ran, per pipeline rank; ^ the first wrong one:",
        "     rank 0 0F0|0F1|········0B0----|····0B1----|",
        "                ^^^",
        "     rank 1 ····1F0|1B0----|1F1|1B1----|········",
        "",
    ]


def test_after_ten_blocks_the_rest_is_only_listed(make):
    violations = [make.violation("FWD-1", "GPipe", signature=f"kind {i}") for i in range(12)]
    text = printed(make.result(make.cell("FWD-1", "GPipe", *violations)))

    assert text.count("smallest case") == 10
    assert "\n11 to 12 in full: pipeconform-results/result.json\n" in text


def test_a_long_message_is_cut_with_a_count(make):
    message = "\n".join(f"line {i}" for i in range(40))
    text = printed(
        make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe", message=message)))
    )

    assert "     line 23\n     … (16 more lines in the result file)\n" in text


def test_square_brackets_in_messages_are_text(make):
    violation = make.violation("FWD-1", "GPipe", message="value differs at [0, 1] [bold]x[/bold]")

    assert "at [0, 1] [bold]x[/bold]" in printed(make.result(make.cell("FWD-1", "GPipe", violation)))


def test_an_unconfirmed_violation_says_so(make):
    violation = make.violation("FWD-1", "GPipe", confirmed=False, reruns=5, shown_again=2)

    text = printed(make.result(make.cell("FWD-1", "GPipe", violation)))

    assert "(flaky: executed again, the case showed it 2 of 5 times)" in text
    assert "1. FWD-1 Outputs (MUST): FLAKY under GPipe" in text


def test_a_case_that_is_wrong_in_changing_ways_is_no_flaky_one(make):
    violation = make.violation("FWD-1", "GPipe", reruns=5, shown_again=3, shown_otherwise=2)

    text = " ".join(printed(make.result(make.cell("FWD-1", "GPipe", violation))).split())

    assert "FLAKY" not in text
    assert (
        "(wrong each time, but not always in the same way: executed again, the case showed it 3 of 5 times, "
        "and another violation 2 times)" in text
    )


def test_the_reason_of_a_skipped_cell_is_told_once(make):
    cells = [
        make.cell(r, "ZBVZeroBubble", status="skipped", reason="claims no pipeline of 1 rank", judgements=0)
        for r in ("FWD-1", "FWD-2", "FWD-3")
    ]

    line = "skip  FWD-1 under ZBVZeroBubble and 2 more cells: claims no pipeline of 1 rank"
    assert printed(make.result(*cells), verbose=True).count("claims no pipeline") == 1
    assert line in printed(make.result(*cells), verbose=True).splitlines()
    assert "claims no pipeline" not in printed(make.result(*cells))


@pytest.mark.parametrize(
    ("where", "ending"),
    [
        (DEFAULT_RESULT, "--impl torch"),
        (None, "--impl torch"),
        (Path("a b/r.json"), "torch --result 'a b/r.json'"),
    ],
)
def test_the_replay_line_names_a_result_file_that_replay_would_not_find(make, where, ending):
    assert replay_line(make.violation("FWD-1", "GPipe"), where=where).endswith(ending)


def test_an_interrupted_run_claims_no_more_than_it_knows(make):
    lines = totals(make.result(make.cell("FWD-1", "GPipe"), complete=False))

    assert lines[1].startswith(
        "4 judgements of at least 1,234 executions; at least 20 distinct cases, at least 15"
    )


@pytest.mark.parametrize(
    ("cells", "complete", "expected"),
    [
        ([("FWD-1", {})], True, "toy GPipe 1.0 meets the one judged requirement"),
        ([("FWD-1", {}), ("TRN-1", {})], True, "toy GPipe 1.0 meets all 2 judged requirements"),
        ([("FWD-1", {})], False, "stopped early; so far toy GPipe 1.0 meets the one judged requirement"),
        ([("FWD-1", {"status": "not_claimed", "judgements": 0})], True, "nothing was judged"),
        ([("COM-2", {"status": "nothing_compared"})], True, "nothing was judged"),
        (
            [("FWD-1", {}), ("COM-2", {"status": "nothing_compared"})],
            True,
            "toy GPipe 1.0 meets the one judged requirement; nothing was compared for COM-2",
        ),
        (
            [("FWD-1", {"status": "error", "judgements": 0, "reason": "broken"})],
            True,
            "1 cell could not be judged; otherwise nothing was judged",
        ),
    ],
)
def test_the_last_word_says_what_was_found(make, cells, complete, expected):
    result = make.result(*(make.cell(name, "GPipe", **fields) for name, fields in cells), complete=complete)

    assert str(verdict(result)) == expected


def test_what_is_returned_and_not_claimed_is_said(make):
    cells = [
        make.cell("FWD-1", name, unclaimed=("microbatch_losses", "outputs")) for name in ("GPipe", "1F1B")
    ]
    text = printed(make.result(*cells))

    assert text.count("returns outputs, does not claim Feature.OUTPUTS\n") == 1
    assert text.count("returns microbatch losses, does not claim Feature.MICROBATCH_LOSSES\n") == 1


def test_what_compared_nothing_is_neither_ok_nor_a_failure(make):
    reason = "nothing compared: no case had a bystander (raise --ranks to 3, and claim sub_groups)"
    text = printed(make.result(make.cell("COM-2", "GPipe", status="nothing_compared", reason=reason)))

    assert "1 cell: 1 nothing compared\n" in text
    assert f"NONE  COM-2 under GPipe: {reason}\n" in text


def test_a_summary_without_a_file_names_none(make):
    assert "results:" not in printed(make.result(make.cell("FWD-1", "GPipe")), where=None)


def test_the_slowest_requirements_are_named_where_time_matters(make):
    slow = make.result(
        make.cell("FWD-1", "GPipe", seconds=4.0),
        make.cell("FWD-1", "1F1B", seconds=4.4),
        make.cell("TRN-1", "GPipe", seconds=30.0),
    )

    assert "\nslowest: TRN-1 30 s, FWD-1 8 s\n" in printed(slow)
    assert "slowest" not in printed(make.result(make.cell("FWD-1", "GPipe", seconds=0.5)))


def test_expected_failures_are_told_in_a_line_each_and_are_no_blocks(make):
    cells = [
        make.cell("TRN-4", name, make.violation("TRN-4", name, expected="known.toml:3"))
        for name in ("GPipe", "1F1B")
    ]
    text = printed(make.result(*cells, make.cell("FWD-1", "GPipe")))

    assert (
        "\nexpected: TRN-4 failed 'output value' under GPipe, 1F1B, in 4 drawn cases (known.toml:3)\n" in text
    )
    assert "known" in table(make.result(*cells))
    assert "1. " not in text
    assert text.endswith(
        "toy GPipe 1.0 violates what is expected (TRN-4) and nothing else\n"
        "results: pipeconform-results/result.json"
    )


def test_what_must_be_changed_in_the_expectations_is_the_last_thing_said(make):
    held = Expectations(file="known.toml", digest="", entries=1, problems=("known.toml:3: expired",))
    result = make.changed(make.result(make.cell("FWD-1", "GPipe")), expectations=held)

    assert printed(result).splitlines()[-3:-1] == [
        "known.toml:3: expired",
        "toy GPipe 1.0 violates nothing; known.toml: 1 thing to change",
    ]


def test_a_run_of_everything_says_how_many_pairs_it_reached(make):
    pairs = (
        Pairs(of=("schedule", "p"), reached=8, reachable=8),
        Pairs(of=("schedule", "boundary"), reached=30, reachable=60, missing=(("GPipe", "views"),)),
    )
    result = make.result(make.cell("FWD-1", "GPipe"))
    full = make.changed(
        result,
        totals=make.changed(result.totals, pairs=pairs),
        run=make.changed(result.run, unrestricted=True),
    )
    line = (
        "38 of 68 pairs of schedule, p, v, m and kind of boundary were reached; "
        "the fewest of schedule × boundary, 30 of 60"
    )

    assert totals(full)[-1] == line
    assert line not in totals(make.changed(full, run=make.changed(full.run, selection="FWD-1")))
    assert line not in totals(make.changed(full, run=make.changed(full.run, unrestricted=False)))
