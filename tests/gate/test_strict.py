"""The file is held against the result: entries that nothing shows, that match nothing, or that expired."""

import datetime

import msgspec
import pytest

from pipeconform.gate.expectations import Expectation, ExpectationsFile, StoredCase
from pipeconform.gate.strict import problems, unexplained
from pipeconform.report.result import Control

TODAY = datetime.date(2026, 6, 1)
ENTRY = Expectation(
    requirement="TRN-4",
    status="failed",
    signature="gradient value",
    reason="divided twice",
    issue="https://example.org/7",
    owner="us",
    expires=datetime.date(2026, 12, 31),
    file="expectations.toml",
    line=7,
)
COUNTS = {"p=2,v=1": 3, "p=3,v=1": 1}


@pytest.fixture
def told(make):
    def about(*cells, entry=ENTRY, today=TODAY, **run):
        result = make.result(*cells)
        settings = {"unrestricted": True, **run}
        result = msgspec.structs.replace(result, run=msgspec.structs.replace(result.run, **settings))
        return problems(ExpectationsFile(name="x", digest="", entries=(entry,)), result, today=today)

    return about


@pytest.fixture
def shown(make):
    def cell(schedule="GPipe", expected=ENTRY.label, **others):
        violation = make.violation("TRN-4", schedule, expected=expected, **others)
        return make.cell("TRN-4", schedule, violation, counts=COUNTS)

    return cell


def entry(**fields):
    return msgspec.structs.replace(ENTRY, **fields)


def test_an_entry_that_is_shown_needs_no_change(told, shown):
    assert told(shown()) == ()


def test_an_unexpected_pass_names_the_line_and_what_to_remove(told, make, shown):
    passing = make.cell("TRN-4", "1F1B", counts=COUNTS)

    assert told(shown(), passing, entry=entry(schedules=("GPipe", "1F1B"))) == (
        "expectations.toml:7: unexpected pass: TRN-4 under 1F1B no longer shows failed 'gradient value', "
        "it passes (4 judgements); remove '1F1B' from the entry, or the entry; "
        "'pipeconform expect update --write' does that",
    )


def test_another_status_or_defect_in_its_place_is_told(told, make):
    hung = make.violation("TRN-4", "GPipe", status="hung", signature="hang")
    (problem,) = told(make.cell("TRN-4", "GPipe", hung, counts=COUNTS), entry=entry(schedules=("GPipe",)))

    assert "no longer shows failed 'gradient value', it shows hung 'hang' instead" in problem


def test_an_entry_for_every_schedule_must_be_shown_by_one(told, make, shown):
    passing = make.cell("TRN-4", "1F1B", counts=COUNTS)

    assert told(shown(), passing) == ()
    assert told(passing) == (
        "expectations.toml:7: matches nothing: TRN-4 shows failed 'gradient value' under no schedule "
        "(4 judgements); remove the entry",
    )


def test_a_schedule_that_does_not_exist_matches_nothing(told, shown):
    (problem,) = told(shown(), entry=entry(schedules=("GPipe", "GPie")))

    assert (
        problem
        == "expectations.toml:7: matches nothing: there is no schedule 'GPie'; remove it from the entry"
    )


def test_a_schedule_that_was_not_asked_for_is_left_alone(told, shown):
    assert told(shown(), entry=entry(schedules=("GPipe", "1F1B")), unrestricted=False) == ()


def test_a_requirement_that_was_not_asked_for_is_left_alone(told, make):
    assert told(make.cell("FWD-1", "GPipe"), selection="FWD") == ()


def test_a_requirement_that_was_not_judged_matches_nothing(told, make):
    assert told(make.cell("FWD-1", "GPipe")) == (
        "expectations.toml:7: matches nothing: TRN-4 was not judged; remove the entry",
    )


def test_what_is_not_claimed_matches_nothing(told, make):
    cell = make.cell("TRN-4", "GPipe", status="not_claimed", judgements=0)
    (problem,) = told(cell, entry=entry(schedules=("GPipe",)))

    assert problem.endswith("matches nothing: TRN-4 under GPipe is not claimed; remove 'GPipe' from it")


def test_an_entry_about_a_cell_that_the_run_skipped_is_left_alone_and_one_about_another_is_not(told, make):
    skipped = make.cell("TRN-4", "GPipe", status="skipped", judgements=0)

    assert told(skipped, entry=entry(schedules=("GPipe",))) == ()
    assert told(skipped) == ()
    assert len(told(skipped, make.cell("TRN-4", "1F1B", counts=COUNTS))) == 1
    assert len(told(skipped, entry=entry(schedules=("1F1B",)))) == 1


def test_what_shows_by_chance_may_pass_and_other_violations_may_not_hide_behind_it(told, make):
    chance = entry(schedules=("GPipe",), status=("failed", "flaky", "passed"))
    everywhere = entry(status=("failed", "passed"))
    met = make.cell("TRN-4", "GPipe", counts=COUNTS)

    assert told(met, entry=chance) == ()
    assert told(met, entry=everywhere) == ()
    assert "unexpected pass" in told(met, entry=entry(schedules=("GPipe",), status=("failed", "hung")))[0]
    assert not chance.shows("failed", "another kind", case=make.case())
    assert not chance.shows("hung", chance.signature, case=make.case())


def test_what_compared_nothing_does_not_pass(told, make):
    cell = make.cell(
        "TRN-4", "GPipe", status="nothing_compared", reason="no case had two stages", counts=COUNTS
    )
    (problem,) = told(cell, entry=entry(schedules=("GPipe",)))

    assert "cannot be checked: TRN-4 under GPipe compared nothing (no case had two stages)" in problem
    assert "remove" not in problem


def test_sizes_that_no_case_has_match_nothing(told, make):
    (problem,) = told(
        make.cell("TRN-4", "GPipe", counts=COUNTS), entry=entry(schedules=("GPipe",), p=(4,), v=(2,))
    )

    assert problem.endswith("no case of TRN-4 under GPipe has the entry's p and v; remove 'GPipe' from it")


def test_only_judgements_of_the_sizes_it_names_count(told, make):
    (problem,) = told(make.cell("TRN-4", "GPipe", counts=COUNTS), entry=entry(schedules=("GPipe",), p=(3,)))

    assert "(1 judgements)" in problem


def test_another_device_is_left_alone(told, make):
    assert told(make.cell("TRN-4", "GPipe", counts=COUNTS), entry=entry(device="cuda")) == ()


def test_another_torch_is_left_alone(told, make):
    cell = make.cell("TRN-4", "GPipe", counts=COUNTS)  # of a result with torch 2.13.0

    assert told(cell, entry=entry(torch=">=2.14")) == ()
    assert told(cell, entry=entry(torch="<2.14")) != ()


def test_an_entry_expires_after_its_day(told, shown):
    last = ENTRY.expires

    assert told(shown(), today=last) == ()
    assert told(shown(), today=last + datetime.timedelta(days=1)) == (
        "expectations.toml:7: expired on 2026-12-31: fix TRN-4, or give a new date and the reason for it",
    )


def test_a_stored_case_that_shows_nothing_any_more_fails_no_run_if_other_cases_show_its_entry(
    told, make, shown
):
    """What depends on addresses or on timing shows in one process, and not in the next."""
    stored = StoredCase(path="cases/1.json", case=make.case())
    stale = msgspec.structs.replace(shown(), stale=("cases/1.json",))

    assert told(stale, entry=entry(stored=(stored,))) == ()


def test_a_run_that_was_cut_short_says_nothing_about_what_it_did_not_reach(told, make):
    assert told(make.cell("FWD-1", "GPipe"), complete=False) == ()


def test_a_cell_that_the_harness_could_not_judge_is_no_unexpected_pass(told, make):
    broken = make.cell("TRN-4", "GPipe", status="error", reason="the harness failed", judgements=0)

    assert told(broken, entry=entry(schedules=("GPipe",))) == ()
    assert told(broken) == ()


@pytest.fixture
def blocked(make):
    """A cell of TRN-1 that TRN-4 blocks."""
    violation = make.violation("TRN-1", "GPipe")
    control = Control(
        digest=violation.digest, requirement="TRN-4", status="failed", signature="gradient value"
    )
    return make.cell("TRN-1", "GPipe", msgspec.structs.replace(violation, control=control), status="blocked")


def test_a_blocked_cell_is_known_if_all_that_blocks_it_is_expected(shown, blocked):
    assert unexplained([shown(), blocked]) == ()


def test_a_blocked_cell_is_not_known_if_what_blocks_it_is_not_expected(shown, blocked):
    assert unexplained([shown(expected=""), blocked]) == blocked.violations


def test_a_blocked_cell_is_not_known_if_what_blocks_it_was_not_judged(shown, blocked):
    assert unexplained([shown("1F1B"), blocked]) == blocked.violations


def test_a_cell_whose_other_violations_are_blocked_is_expected(shown, blocked):
    cell = shown()
    both = msgspec.structs.replace(cell, violations=(*cell.violations, *blocked.violations))

    assert both.is_expected
    assert not blocked.is_expected
