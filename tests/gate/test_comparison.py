"""Two results are compared cell by cell: what got worse, what got better, and whose doing it is."""

from pathlib import Path

import msgspec
import pytest

from pipeconform.gate.comparison import compare
from pipeconform.report.result import Control


@pytest.fixture
def failing(make):
    def cell(requirement="TRN-4", schedule="GPipe", **others):
        return make.cell(requirement, schedule, make.violation(requirement, schedule, **others))

    return cell


def changed(result, *, run=None, **fields):
    if run is not None:
        fields["run"] = msgspec.structs.replace(result.run, **run)
    return msgspec.structs.replace(result, **fields)


def kinds(comparison):
    return [(one.kind, one.requirement, one.schedule) for one in comparison.changes]


def test_equal_results_differ_in_nothing(make, failing):
    result = make.result(make.cell("FWD-1", "GPipe"), failing())
    comparison = compare(result, result)

    assert (comparison.changes, comparison.blocked) == ((), False)
    assert (comparison.unchanged, comparison.still_violated) == (2, 1)


def test_a_violation_where_there_was_none_is_a_regression(make, failing):
    comparison = compare(make.result(make.cell("TRN-4", "GPipe")), make.result(failing()))

    (change,) = comparison.changes
    assert (change.kind, change.before, change.after) == ("regressed", "passed", "failed")
    assert (change.signature, change.cause, comparison.blocked) == (
        "failed: output value",
        "implementation",
        True,
    )


def test_another_violation_in_a_cell_that_failed_before_is_a_regression(make, failing):
    both = make.cell(
        "TRN-4",
        "GPipe",
        make.violation("TRN-4", "GPipe"),
        make.violation("TRN-4", "GPipe", signature="buffer value"),
    )
    comparison = compare(make.result(failing()), make.result(both))

    assert [one.signature for one in comparison.of("regressed")] == ["failed: buffer value"]
    assert comparison.still_violated == 1


def test_another_status_with_the_same_signature_is_another_violation(make, failing):
    comparison = compare(make.result(failing()), make.result(failing(status="hung")))

    assert kinds(comparison) == [("regressed", "TRN-4", "GPipe"), ("fixed", "TRN-4", "GPipe")]


def test_a_violation_that_is_gone_is_fixed(make, failing):
    comparison = compare(make.result(failing()), make.result(make.cell("TRN-4", "GPipe")))

    assert kinds(comparison) == [("fixed", "TRN-4", "GPipe")]
    assert not comparison.blocked


def test_a_violation_that_is_no_longer_judged_is_lost_not_fixed(make, failing):
    silent = make.cell("TRN-4", "GPipe", status="not_claimed", judgements=0, reason="not claimed any more")
    comparison = compare(make.result(failing()), make.result(silent))

    (change,) = comparison.changes
    assert (change.kind, change.detail) == ("lost", "no longer judged: not claimed (not claimed any more)")
    assert comparison.blocked


def test_a_cell_that_compares_nothing_any_more_is_lost(make):
    """It may have been met or violated: neither is known any more."""
    reason = "nothing compared: no case had a bystander (raise --ranks to 3, and claim sub_groups)"
    void = make.cell("COM-2", "GPipe", status="nothing_compared", reason=reason)
    met = make.cell("COM-2", "GPipe")

    comparison = compare(make.result(met), make.result(void))

    assert [(change.kind, change.detail) for change in comparison.changes] == [("lost", reason)]
    assert comparison.blocked
    assert kinds(compare(make.result(void), make.result(void))) == []
    assert kinds(compare(make.result(void), make.result(met))) == [("added", "COM-2", "GPipe")]


def test_a_failure_of_a_cell_that_was_not_judged_is_new(make, failing):
    comparison = compare(make.result(make.cell("TRN-4", "GPipe")), make.result(failing(schedule="1F1B")))

    assert kinds(comparison) == [("new", "TRN-4", "1F1B"), ("lost", "TRN-4", "GPipe")]


@pytest.mark.parametrize(
    ("run", "detail", "cause"),
    [
        ({"selection": "TRN-4"}, "not selected in the new run (--requirements TRN-4)", "selection"),
        ({"selection": "TRN"}, "not selected in the new run (--requirements TRN)", "selection"),
        ({"schedules": ("1F1B",)}, "not selected in the new run (--schedules 1F1B)", "selection"),
        ({"schedules": ("1F1B",), "unrestricted": True}, "no longer judged: absent", "implementation"),
        ({"selection": "TRN,fwd-1"}, "no longer judged: absent", "implementation"),
    ],
)
def test_what_the_new_run_was_not_asked_for_is_lost_by_the_selection(make, run, detail, cause):
    old = make.result(make.cell("FWD-1", "GPipe"), make.cell("TRN-4", "GPipe"))
    comparison = compare(old, changed(make.result(make.cell("TRN-4", "GPipe")), run=run))

    (change,) = comparison.of("lost")
    assert (change.requirement, change.detail, change.cause) == ("FWD-1", detail, cause)
    assert comparison.blocked


def test_a_cell_that_is_met_and_was_not_judged_is_added(make):
    old = make.result(make.cell("TRN-4", "GPipe"))
    comparison = compare(old, make.result(*old.cells, make.cell("TRN-4", "1F1B")))

    assert kinds(comparison) == [("added", "TRN-4", "1F1B")]
    assert not comparison.blocked


def test_what_does_not_show_every_time_is_flaky_and_blocks(make, failing):
    comparison = compare(
        make.result(make.cell("TRN-4", "GPipe")),
        make.result(failing(confirmed=False, reruns=5, shown_again=2)),
    )

    (change,) = comparison.changes
    assert (change.kind, change.detail) == ("flaky", "shown again in 2 of 5 executions")
    assert comparison.blocked


def test_a_flaky_verdict_is_told_again_each_time_and_blocks_no_more(make, failing):
    """It blocks when its kind is new; whether it shows is chance from then on, whichever way it comes."""
    flaky = make.result(failing(confirmed=False, reruns=5, shown_again=2))
    steady = make.result(failing())
    met = make.result(make.cell("TRN-4", "GPipe"))

    for old in (flaky, steady):
        comparison = compare(old, flaky)
        assert kinds(comparison) == [("sometimes", "TRN-4", "GPipe")]
        assert comparison.changes[0].detail == "shown again in 2 of 5 executions"
        assert not comparison.blocked
    for new in (steady, met):
        assert not compare(flaky, new).blocked


@pytest.mark.parametrize(
    ("status", "before", "after", "expected"),
    [
        ("hung", "hang", "others left waiting", "reworded"),
        ("crashed", "died: SIGABRT", "died: SIGSEGV", "reworded"),
        ("error", "raised RuntimeError: rank #", "raised RuntimeError: connection closed", "reworded"),
        ("error", "raised RuntimeError: rank #", "raised KeyError: 'x'", "regressed"),
        ("failed", "gradient value", "gradient missing", "regressed"),
    ],
)
def test_the_same_in_other_words_is_no_regression(make, failing, status, before, after, expected):
    """Which rank is seen to wait, or which words an error has, is chance; which value is wrong is not."""
    comparison = compare(
        make.result(failing(status=status, signature=before)),
        make.result(failing(status=status, signature=after)),
    )

    assert comparison.changes[0].kind == expected
    assert comparison.blocked is (expected == "regressed")
    assert len(comparison.changes) == (1 if expected == "reworded" else 2)


def test_an_expected_violation_is_no_regression(make, failing):
    comparison = compare(make.result(make.cell("TRN-4", "GPipe")), make.result(failing(expected="x.toml:3")))

    assert comparison.changes == ()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"counts": {"p=2,v=1": 4}}, "no more cases with p=3, v=1"),
        ({"microbatches": {"more": 4}}, "no more cases with m < p"),
        ({"judgements": 3}, "fewer examples: 4 → 3"),
    ],
)
def test_less_coverage_of_a_cell_is_told(make, fields, expected):
    full = {"counts": {"p=2,v=1": 2, "p=3,v=1": 2}, "microbatches": {"more": 2, "fewer": 2}}
    old = make.result(make.cell("TRN-4", "GPipe", **full))
    comparison = compare(old, make.result(make.cell("TRN-4", "GPipe", **(full | fields))))

    assert [one.detail for one in comparison.of("less")] == [expected]
    assert comparison.blocked


def test_another_seed_may_draw_fewer_distinct_cases(make):
    old = make.result(make.cell("TRN-4", "GPipe"))
    new = make.result(make.cell("TRN-4", "GPipe", judgements=3))

    assert compare(old, changed(new, run={"seed": 1})).changes == ()
    assert compare(old, changed(new, run={"seed": 1, "corpus": 2})).of("less")


def test_a_run_without_classes_of_microbatches_lost_none(make):
    """Files of an older format do not hold them."""
    old = make.result(make.cell("TRN-4", "GPipe", microbatches={"more": 4}))

    assert compare(old, make.result(make.cell("TRN-4", "GPipe"))).changes == ()


def test_a_changed_rule_is_told_apart_from_a_changed_implementation(make, failing):
    old = changed(make.result(make.cell("TRN-4", "GPipe"), make.cell("FWD-1", "GPipe")))
    old = changed(old, rules={"TRN-4": "aa", "FWD-1": "bb"})
    new = make.result(failing(), failing("FWD-1"))
    new = changed(new, rules={"TRN-4": "cc", "FWD-1": "bb"})
    causes = {one.requirement: one.cause for one in compare(old, new).changes}

    assert causes == {"TRN-4": "rules", "FWD-1": "implementation"}


def test_another_version_of_the_standard_draws_other_cases(make, failing):
    old = changed(make.result(make.cell("TRN-4", "GPipe")), standard_version="0.0")
    (change,) = compare(old, make.result(failing())).changes

    assert change.cause == "rules"


def test_a_requirement_that_the_old_standard_did_not_have_is_a_new_rule(make, failing):
    old = changed(make.result(make.cell("FWD-1", "GPipe")), rules={"FWD-1": "bb"})
    new = changed(make.result(make.cell("FWD-1", "GPipe"), failing()), rules={"FWD-1": "bb", "TRN-4": "aa"})
    (change,) = compare(old, new).changes

    assert (change.kind, change.cause) == ("new", "rules")


def test_a_requirement_that_the_old_run_did_not_ask_for_is_no_new_rule(make, failing):
    old = changed(make.result(make.cell("FWD-1", "GPipe")), rules={"FWD-1": "bb"}, run={"selection": "FWD"})
    new = changed(make.result(make.cell("FWD-1", "GPipe"), failing()), rules={"FWD-1": "bb", "TRN-4": "aa"})
    (change,) = compare(old, new).changes

    assert change.cause == "implementation"


def test_a_requirement_that_was_judged_before_without_a_recorded_rule_is_no_new_one(make, failing):
    old = changed(
        make.result(make.cell("FWD-1", "GPipe"), make.cell("TRN-4", "GPipe")), rules={"FWD-1": "bb"}
    )
    new = changed(make.result(make.cell("FWD-1", "GPipe"), failing()), rules={"FWD-1": "bb", "TRN-4": "aa"})
    (change,) = compare(old, new).changes

    assert (change.kind, change.cause) == ("regressed", "implementation")


def test_a_cell_that_only_the_new_run_judges_is_no_new_rule_where_its_rule_is_old(make, failing):
    rules = {"FWD-1": "bb", "TRN-4": "aa"}
    old = changed(make.result(make.cell("FWD-1", "GPipe")), rules=rules)
    (change,) = compare(
        old, changed(make.result(make.cell("FWD-1", "GPipe"), failing()), rules=rules)
    ).changes

    assert (change.kind, change.cause) == ("new", "implementation")


def test_a_violation_is_replayed_from_the_file_that_has_it(make, failing):
    """What came or went with another violation may be in the old file only."""
    files = (Path("old.json"), Path("new.json"))
    (change,) = compare(make.result(make.cell("TRN-4", "GPipe")), make.result(failing()), files=files).changes
    assert " new.json" in change.replay
    assert "old.json" not in change.replay

    control = Control(digest="d", requirement="FWD-1", status="failed", signature="output value")
    blocked = failing("TRN-1", control=control)
    old = make.result(failing("FWD-1"), blocked)
    for gone in (make.cell("TRN-1", "GPipe"), failing("TRN-1", signature="loss value", id="b")):
        effects = compare(old, make.result(failing("FWD-1"), gone), files=files).of("effect")
        assert [" old.json" in one.replay for one in effects] == [True]
