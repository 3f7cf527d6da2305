"""A proposed file says what the result shows, keeps what people wrote, and is refused while it is incomplete."""

import datetime
import tomllib

import msgspec
import pytest

from pipeconform.errors import BadExpectationsError
from pipeconform.gate.expectations import read_expectations
from pipeconform.gate.proposal import propose, write_proposal
from pipeconform.observe.localisation import Localisation
from pipeconform.report.result import Control, Shown

FILLED = {
    "reason": 'it\'s "known" \\ and\x7f odd',
    "issue": "https://example.org/7",
    "owner": "us",
    "expires": datetime.date(2031, 1, 2),
}


@pytest.fixture
def failing(make):
    def cell(schedule="GPipe", requirement="TRN-4", **others):
        others = {"id": f"{requirement}:{schedule}:default:1f3a", **others}
        case = make.changed(make.case(), schedule=schedule)
        return make.cell(requirement, schedule, make.violation(requirement, schedule, case, **others))

    return cell


@pytest.fixture
def stored(tmp_path):
    """Write a proposal and read it again, strictly."""

    def write(proposal):
        path = tmp_path / "pipeconform-expectations.toml"
        write_proposal(proposal, path)
        return read_expectations(path)

    return write


def test_what_is_proposed_and_filled_in_can_be_read(make, failing, stored):
    result = make.result(failing(), failing("1F1B"), make.cell("FWD-1", "GPipe"))
    (entry,) = stored(propose(result, **FILLED)).entries

    assert (entry.requirement, entry.schedules) == ("TRN-4", ("GPipe", "1F1B"))
    assert (entry.status, entry.signature, entry.reason) == ("failed", "output value", FILLED["reason"])
    assert [one.case.schedule for one in entry.stored] == ["GPipe", "1F1B"]


def test_what_only_a_person_can_say_is_left_empty_and_refused(make, failing, stored):
    with pytest.raises(BadExpectationsError, match="the entry lacks reason, issue, owner, expires"):
        stored(propose(make.result(failing())))


def test_every_defect_gets_an_entry_of_its_own(make, failing):
    cell = make.cell(
        "TRN-4",
        "GPipe",
        make.violation("TRN-4", "GPipe"),
        make.violation("TRN-4", "GPipe", signature="hang", status="hung"),
    )
    rows = tomllib.loads(propose(make.result(cell)).text)["expect"]

    assert [(row["status"], row["signature"]) for row in rows] == [
        ("failed", "output value"),
        ("hung", "hang"),
    ]


def test_a_flaky_violation_is_expected_by_chance_with_its_rate(make, failing, stored):
    flaky = make.result(failing(confirmed=False, reruns=5, shown_again=2))
    (entry,) = stored(propose(flaky, **FILLED)).entries

    assert entry.statuses == ("failed", "flaky", "passed")
    assert entry.is_chance
    assert entry.seen == "1 of 1 runs, 2 of 5 executions of its case"


def test_what_some_results_show_is_expected_by_chance(make, failing, stored):
    """Under the schedule where every run shows it, it is expected every time."""
    met = make.cell("TRN-4", "GPipe")
    results = [make.result(first, failing("1F1B")) for first in (met, failing(), failing())]
    steady, chance = sorted(
        stored(propose(results[0], others=results[1:], **FILLED)).entries, key=lambda one: one.is_chance
    )

    assert (steady.schedules, steady.status, steady.seen) == (("1F1B",), "failed", "")
    assert (chance.schedules, chance.seen) == (("GPipe",), "2 of 3 runs")
    assert chance.statuses == ("failed", "flaky", "passed")


def test_an_entry_about_chance_is_kept_when_a_run_does_not_show_it(make, failing, stored):
    first = stored(propose(make.result(failing(confirmed=False, reruns=5, shown_again=2)), **FILLED))
    (entry,) = stored(propose(make.result(make.cell("TRN-4", "GPipe")), first)).entries

    assert (entry.schedules, entry.seen) == (("GPipe",), first.entries[0].seen)


def test_an_entry_keeps_what_people_wrote_and_loses_what_passes(make, failing, stored):
    first = stored(propose(make.result(failing(), failing("1F1B")), **FILLED))
    label = first.entries[0].label
    later = make.result(failing(expected=label), make.cell("TRN-4", "1F1B"))
    (entry,) = stored(propose(later, first)).entries

    assert (entry.schedules, entry.reason, entry.expires) == (("GPipe",), FILLED["reason"], FILLED["expires"])


def test_an_entry_that_nothing_shows_is_dropped(make, failing, stored):
    first = stored(propose(make.result(failing()), **FILLED))

    assert "[[expect]]" not in propose(make.result(make.cell("TRN-4", "GPipe")), first).text


def test_an_entry_about_what_was_not_judged_is_kept(make, failing, stored):
    first = stored(propose(make.result(failing()), **FILLED))
    proposal = propose(make.result(make.cell("FWD-1", "GPipe")), first)

    assert stored(proposal).entries == first.entries


def test_an_entry_for_every_schedule_stays_one(make, failing, stored, tmp_path):
    first = stored(propose(make.result(failing()), **FILLED))
    everywhere = msgspec.structs.replace(first.entries[0], schedules=())
    first = msgspec.structs.replace(first, entries=(everywhere,))
    shown = make.result(failing(expected=everywhere.label))

    assert stored(propose(shown, first)).entries[0].schedules == ()
    assert "[[expect]]" not in propose(make.result(make.cell("TRN-4", "GPipe")), first).text


def test_what_the_largest_case_shows_is_stored_too(make, stored):
    large = Shown(case=make.case(p=4), line="rank 3 differs")
    violation = make.violation("TRN-4", "GPipe", signature="declared and executed differ", large=large)
    (entry,) = stored(propose(make.result(make.cell("TRN-4", "GPipe", violation)), **FILLED)).entries

    assert [one.case.num_ranks for one in entry.stored] == [violation.case.num_ranks, 4]
    assert [one.text for one in entry.stored] == [violation.line, "rank 3 differs"]


def test_a_stale_case_is_replaced(make, failing, stored):
    first = stored(propose(make.result(failing()), **FILLED))
    entry = first.entries[0]
    other = make.changed(make.case(m=3), schedule="GPipe")
    violation = make.violation("TRN-4", "GPipe", other, expected=entry.label, id="TRN-4:GPipe:default:beef")
    cell = make.changed(make.cell("TRN-4", "GPipe", violation), stale=(entry.stored[0].path,))
    (after,) = stored(propose(make.result(cell), first)).entries

    assert [one.case for one in after.stored] == [other]


def test_a_folder_that_cannot_be_written_is_named(make, failing, tmp_path):
    with pytest.raises(BadExpectationsError, match="cannot write /proc/nowhere"):
        write_proposal(propose(make.result(failing())), tmp_path.__class__("/proc/nowhere/x.toml"))


def test_an_entry_that_moved_since_the_run_is_still_the_same(make, failing, stored):
    """The result names the line at which the entry stood then."""
    first = stored(propose(make.result(failing()), **FILLED))
    moved = make.result(failing(expected="pipeconform-expectations.toml:99"))

    assert stored(propose(moved, first)).entries == first.entries


def test_without_a_file_what_was_expected_is_proposed_anew(make, failing):
    assert "[[expect]]" in propose(make.result(failing(expected="lost.toml:3"))).text


def test_another_size_than_an_entry_names_gets_an_entry_of_its_own(make, failing, stored):
    first = stored(propose(make.result(failing()), **FILLED))
    narrow = msgspec.structs.replace(first, entries=(msgspec.structs.replace(first.entries[0], p=(4,)),))
    rows = tomllib.loads(propose(make.result(failing()), narrow, **FILLED).text)["expect"]

    assert [row.get("p") for row in rows] == [None]


def test_what_a_case_shows_every_time_is_stored_with_it(make, failing, stored):
    """Where a value is wrong, what is said about it may depend on the machine."""
    steady = stored(propose(make.result(failing(message="rank 1 ran 0F1\nmore", where="step 0")), **FILLED))
    chance = stored(propose(make.result(failing(confirmed=False, reruns=5, shown_again=2)), **FILLED))

    assert [case.text for case in steady.entries[0].stored] == ["rank 1 ran 0F1 (step 0)"]
    assert [case.text for case in chance.entries[0].stored] == [""]


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "hung", "signature": "hang"},
        {"localisation": Localisation(first=None, compared=4, wrong=1)},
    ],
    ids=["a hang", "a wrong value"],
)
def test_what_depends_on_the_machine_is_not_stored_with_a_case(make, failing, stored, changes):
    (entry,) = stored(propose(make.result(failing(**changes)), **FILLED)).entries

    assert [one.text for one in entry.stored] == [""]


def test_what_two_runs_tell_in_different_words_is_not_stored_with_its_case(make, failing, stored):
    one, other = (make.result(failing(message=message)) for message in ("rank 0 differs", "rank 1 differs"))

    for second, text in ((one, one.cells[0].violations[0].line), (other, "")):
        (entry,) = stored(propose(one, others=[second], **FILLED)).entries
        assert [case.text for case in entry.stored] == [text]


def test_an_entry_about_another_device_is_kept_whatever_is_met_here(make, failing, stored):
    first = stored(propose(make.result(failing()), **FILLED))
    there = msgspec.structs.replace(first.entries[0], device="cuda")
    met = make.result(make.cell("TRN-4", "GPipe"))
    (entry,) = stored(propose(met, msgspec.structs.replace(first, entries=(there,)))).entries

    assert (entry.schedules, entry.device) == (("GPipe",), "cuda")


@pytest.mark.parametrize("chance", [True, False])
def test_a_new_case_of_an_entry_has_its_text_unless_it_shows_by_chance(make, failing, stored, chance):
    how = {"confirmed": False, "reruns": 5, "shown_again": 2} if chance else {}
    first = stored(propose(make.result(failing(**how)), **FILLED))
    cell = failing(expected=first.entries[0].label, id="TRN-4:GPipe:default:beef")
    stale = make.changed(cell, stale=tuple(one.path for one in first.entries[0].stored))
    (entry,) = stored(propose(make.result(stale), first)).entries

    assert [one.text for one in entry.stored] == ["" if chance else cell.violations[0].line]


def test_a_blocked_violation_needs_no_entry_beside_its_blocker(make, failing):
    effect = make.violation("TRN-1", "GPipe")
    control = Control(digest=effect.digest, requirement="TRN-4", status="failed", signature="output value")
    blocked = make.cell("TRN-1", "GPipe", msgspec.structs.replace(effect, control=control), status="blocked")

    def proposed(*cells):
        return [row["requirement"] for row in tomllib.loads(propose(make.result(*cells)).text)["expect"]]

    assert proposed(failing(), blocked) == ["TRN-4"]
    assert proposed(blocked) == ["TRN-1"]


def test_a_file_that_is_not_filled_in_yet_is_proposed_again_unchanged(make, failing, tmp_path):
    result, path = make.result(failing(), failing(requirement="FWD-1")), tmp_path / "mine.toml"
    write_proposal(propose(result, owner="us"), path)
    again = propose(result, read_expectations(path, drafts=True))

    assert again.text == path.read_text()
    assert read_expectations(path, drafts=True).entries[0].lacking == ("reason", "issue", "expires")


def test_entries_of_one_cause_stand_together_under_a_line_that_says_so(make, failing, tmp_path):
    ended = "rank 1  died      SIGSEGV in stage.py:7 send  <- first failure"
    crash = {"status": "crashed", "signature": "died: SIGSEGV", "message": ended, "verdicts": ended}
    cells = [
        failing(requirement="TRN-4", **crash),
        failing(requirement="TRN-9", signature="buffer value"),
        failing(requirement="LIF-1", **crash),
    ]
    entries = tomllib.loads(propose(make.result(*cells)).text)["expect"]
    causes = [entry["cause"] for entry in entries]

    assert len(causes) == 3 > len({*causes})
    assert causes == sorted(causes, key=causes.index)  # equal ones are neighbours
    text = propose(make.result(*cells)).text
    assert [line for line in text.splitlines()[3:] if line.startswith("#")] == [
        f"# {causes.count(one)} entries of one cause, {one}"
        for one in dict.fromkeys(causes)
        if causes.count(one) > 1
    ]


def test_a_cause_that_is_known_gives_reason_and_issue(make, failing):
    result = make.result(failing(requirement="TRN-4", signature="gradient value"))
    torch = msgspec.structs.replace(
        result,
        implementation=msgspec.structs.replace(result.implementation, name="torch.distributed.pipelining"),
    )
    (entry,) = tomllib.loads(propose(torch).text)["expect"]
    (own,) = tomllib.loads(propose(torch, reason="ours", issue="https://x.org").text)["expect"]

    assert entry["reason"] == "A step divides the gradients of earlier steps by m again"
    assert entry["issue"].startswith("https://")
    assert (own["reason"], own["issue"]) == ("ours", "https://x.org")
