"""How a cell is judged, on executions that show what a test says."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import msgspec
import pytest

from pipeconform.campaign import cell as module
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.earlier import Earlier
from pipeconform.campaign.kept import KeptCases, read_judged
from pipeconform.campaign.runner import Judged
from pipeconform.campaign.status import identifier_of
from pipeconform.campaign.target import NotAsked
from pipeconform.errors import ContractError, HarnessError, NothingJudgedError
from pipeconform.gate.expectations import Expectation, StoredCase
from pipeconform.judge.outcome import Status
from tests.campaign.acted_cells import (
    ROW,
    ActedAsked,
    ActedCorpus,
    ActedRunner,
    asking,
    campaign_on,
    case_of,
    only,
    wrong,
)


def right(seed, nth):
    return ()


def always(seed, nth):
    return (wrong(),)


def shown_by(*seeds, outcome=None):
    """Executions of these cases show it, those of others show nothing."""
    return lambda seed, nth: (outcome or wrong(),) if seed in seeds else ()


def judged(asked, runner, **fields):
    return judge_cell(campaign_on(asked, runner, **fields), ROW, "GPipe")


# ------------------------------------------------------------------------------ what is executed and counted


def test_what_is_not_asked_is_reported_with_its_reason_and_executes_nothing():
    runner = ActedRunner(always)
    cell = judged(NotAsked("skipped", "too many ranks"), runner)

    assert (cell.status, cell.reason, cell.judgements) == ("skipped", "too many ranks", 0)
    assert runner.executed == []


def test_every_case_of_every_corpus_that_the_requirement_is_about_is_executed_once():
    corpora = tuple(ActedCorpus(tuple(map(case_of, seeds))) for seeds in ((1, 2, 3), (4,), (5, 6)))
    runner = ActedRunner(lambda seed, nth: Judged((), compared=seed, unclaimed=frozenset({f"f{seed}"})))
    asked = ActedAsked(corpora, not_about=frozenset({2}), without=("a subject",))
    campaign = campaign_on(asked, runner)
    cell = judge_cell(campaign, ROW, "GPipe")

    assert runner.seeds == [1, 3, 4, 5, 6]
    assert (cell.status, cell.reason, cell.violations, cell.stale) == ("passed", "", (), ())
    assert (cell.judgements, cell.executions, cell.distinct_cases) == (5, 5, 5)
    assert cell.compared == 1 + 3 + 4 + 5 + 6
    assert (cell.unclaimed, cell.without) == (("f1", "f3", "f4", "f5", "f6"), ("a subject",))
    assert cell.counts == {"p=2,v=1": 5}
    assert cell.microbatches == {"equal": 5, "one": 3}
    assert set(campaign.executed.values()) == {1}
    assert len(campaign.executed) == 5


def test_a_requirement_that_is_about_no_drawn_case_is_not_passed():
    with pytest.raises(NothingJudgedError, match="TRN-4 under GPipe is claimed, but none of the drawn cases"):
        judged(asking(1, 2, not_about=frozenset({1, 2})), ActedRunner(right))


@pytest.mark.parametrize("error", [ContractError("the adapter"), HarnessError("the harness")])
def test_an_error_says_at_which_case_it_happened(error):
    def shows(seed, nth):
        if seed == 2:
            raise error
        return ()

    with pytest.raises(type(error)) as caught:
        judged(asking(1, 2, 3), ActedRunner(shows))

    assert caught.value.case == case_of(2)


def test_a_cell_that_compared_nothing_says_why_of_all_its_cases():
    cell = judged(asking(1, 2, 3), ActedRunner(lambda seed, nth: Judged(())))

    assert (cell.status, cell.reason) == ("nothing_compared", "nothing was compared in 3 cases")


def test_the_judged_cases_are_kept_if_that_is_asked_for(tmp_path):
    judged(asking(1, 2), ActedRunner(right), kept=KeptCases(tmp_path))
    (kept,), cases = read_judged(tmp_path)

    assert (kept.requirement, kept.schedule, kept.variant) == ("TRN-4", "GPipe", "default")
    assert kept.digests == (case_of(1).digest, case_of(2).digest)
    assert set(cases) == set(kept.digests)


def test_the_largest_ratio_to_a_bound_is_told_whenever_it_was_seen():
    ratios = {1: None, 2: 0.25, 3: 0.75, 4: 0.5, 5: None}
    cell = judged(asking(*ratios), ActedRunner(lambda seed, nth: Judged((), ratios[seed], 1)))

    assert cell.worst_ratio == 0.75


def test_requirements_that_observe_alike_share_executions_and_variants_do_not():
    first, second = ActedRunner(right), ActedRunner(right)
    campaign = campaign_on(asking(1, 2), first, second)
    for variant in ("default", "default", "strict"):
        cell = judge_cell(campaign, ROW, "GPipe", variant)
        assert (cell.judgements, cell.variant) == (2, variant)

    assert first.seeds == second.seeds == [1, 2]


def test_executions_that_are_not_kept_are_made_by_every_requirement():
    runner = ActedRunner(right, stores=False)
    campaign = campaign_on(asking(1, 2), runner)
    for _ in range(2):
        judge_cell(campaign, ROW, "GPipe")

    assert runner.seeds == [1, 2, 1, 2]


def test_new_processes_are_compared_with_old_ones_once_for_each_number_of_ranks():
    cases = (case_of(1), case_of(2), case_of(3, ranks=3), case_of(4, ranks=3))
    runner = ActedRunner(right, again=2)
    campaign = campaign_on(ActedAsked((ActedCorpus(cases),), repeats=True), runner)
    cell = judge_cell(campaign, ROW, "GPipe")

    assert [anew for _, _, anew in runner.judged_how] == runner.new_processes == [True, False, True, False]
    assert cell.executions == 4 + 4 * 2
    assert set(campaign.executed.values()) == {3}


def test_where_judging_executes_nothing_again_old_processes_are_still_to_be_compared():
    runner = ActedRunner(right)
    judged(asking(1, 2), runner)

    assert runner.new_processes == [True, True]


# ------------------------------------------------------------------------------ guesses and bounds


def test_what_is_known_already_is_not_judged_thoroughly_again():
    runner = ActedRunner(shown_by(2, 3))
    judged(asking(1, 2, 3), runner)

    assert runner.judged_how[:3] == [(1, True, True), (2, True, True), (3, False, True)]
    assert [thorough for seed, thorough, _ in runner.judged_how if seed == 3] == [False]


def test_a_guess_that_shows_something_new_is_judged_thoroughly():
    def shows(seed, nth):
        return {2: (wrong(),), 3: (wrong(), wrong("output value")), 4: ()}.get(seed, ())

    runner = ActedRunner(shows)
    judged(asking(2, 3, 4), runner)

    assert [(seed, thorough) for seed, thorough, _ in runner.judged_how[:4]] == [
        (2, True),
        (3, False),
        (3, True),
        (4, False),
    ]


def test_a_requirement_that_executes_again_is_always_judged_thoroughly():
    runner = ActedRunner(always)
    judged(asking(1, 2, 3, repeats=True), runner)

    assert [thorough for _, thorough, _ in runner.judged_how[:3]] == [True] * 3


# ------------------------------------------------------------------------------ the search


def test_the_search_judges_what_no_case_was_before_and_steers_by_all_heights(monkeypatch):
    heights = []
    monkeypatch.setattr(module, "target", lambda height, *, label: heights.append((label, height)))
    corpora = (
        ActedCorpus((case_of(1),), (case_of(2), case_of(3))),
        ActedCorpus((case_of(4),), (case_of(5),)),
    )
    runner = ActedRunner(lambda seed, nth: Judged((), seed / 10, 1))
    cell = judged(ActedAsked(corpora, not_about=frozenset({3})), runner, search=40)

    assert sorted(runner.seeds) == [1, 2, 4, 5]
    assert runner.seeds[:2] == [1, 4]
    assert (cell.judgements, cell.distinct_cases) == (4, 4)
    assert set(heights) == {
        (label, height)
        for seed in (2, 5)
        for label, height in (("first", float(seed)), ("second", 2.0), ("third", seed / 10))
    }


def test_a_violation_of_the_search_is_made_small_from_its_corpus():
    corpus = ActedCorpus((case_of(1),), (case_of(2),))
    asked = ActedAsked((corpus,))
    cell = judged(asked, ActedRunner(shown_by(2)), search=20)

    assert only(cell).case == case_of(2)
    assert len(asked.budgets) == 1


def test_without_a_search_only_drawn_cases_are_executed():
    runner = ActedRunner(right)
    judged(ActedAsked((ActedCorpus((case_of(1),), (case_of(2),)),)), runner)

    assert runner.seeds == [1]


# ------------------------------------------------------------------------------ violations


def test_a_violation_has_what_was_found_and_how_to_see_it_again():
    outcome = wrong(message="it is wrong\nat 0", rank=1)
    campaign = campaign_on(asking(1, 2, 3), ActedRunner(shown_by(2, 3, outcome=outcome)))
    campaign.implementation = "mine.py:Mine"
    cell = judge_cell(campaign, ROW, "GPipe")
    found = only(cell)

    assert cell.status == found.status == "failed"
    assert (found.signature, found.message) == ("gradient value", "it is wrong\nat 0")
    assert found.where == outcome.finding.where() != ""
    assert (found.case, found.digest) == (case_of(2), case_of(2).digest)
    assert (found.confirmed, found.minimal, found.occurrences, found.expected) == (True, True, 2, "")
    assert (found.control, found.localisation, found.reruns) == (None, None, 0)
    assert found.id == identifier_of("TRN-4:GPipe:default", "failed/gradient value")
    assert found.replay == f"pipeconform replay {found.id} --impl mine.py:Mine"


def test_every_kind_of_violation_is_told_with_its_own_number_of_occurrences():
    kinds = {1: ("a", "b"), 2: ("b",), 3: ("b", "c")}
    cell = judged(asking(1, 2, 3), ActedRunner(lambda seed, nth: [wrong(kind) for kind in kinds[seed]]))

    assert {one.signature: one.occurrences for one in cell.violations} == {"a": 1, "b": 3, "c": 1}


def test_of_one_kind_the_first_finding_is_told():
    two = (wrong(message="the first"), wrong(message="the second"))
    assert only(judged(asking(1), ActedRunner(lambda seed, nth: two))).message == "the first"


def test_a_violation_is_made_small_and_then_judged_thoroughly():
    asked = asking(1, smaller=(case_of(7), case_of(8), case_of(9)))
    runner = ActedRunner(shown_by(1, 7, 8), localises=["gradient value"])
    found = only(judged(asked, runner))

    assert (found.case, found.confirmed, found.shrink_executions) == (case_of(8), True, 4)
    assert runner.seeds == [1, 1, 7, 8, 9, 8]
    assert runner.judged_how[-1][:2] == (8, True)
    assert not any(thorough for _, thorough, _ in runner.judged_how[1:-1])


def test_candidates_that_the_requirement_is_not_about_are_not_executed():
    asked = asking(1, smaller=(case_of(7), case_of(8)), not_about=frozenset({8}))
    runner = ActedRunner(shown_by(1, 7, 8))

    assert only(judged(asked, runner)).case == case_of(7)
    assert 8 not in runner.seeds


def test_a_first_case_that_stays_the_smallest_is_executed_a_third_time():
    runner = ActedRunner(always)
    found = only(judged(asking(1), runner))

    assert runner.seeds == [1, 1, 1]
    assert (found.confirmed, found.reruns) == (True, 0)
    assert runner.judged_how[-1][:2] == (1, True)


@pytest.mark.parametrize(
    ("shown", "again", "executions"),
    [
        ({1}, 0, 6),  # never again: the second execution and four more
        ({1, 3, 5}, 2, 6),
        ({1, 2}, 1, 7),  # the second showed it, the third did not: four more
        ({1, 2, 4, 5}, 3, 7),
    ],
)
def test_what_does_not_show_every_time_is_flaky_with_how_often_it_did(shown, again, executions):
    runner = ActedRunner(lambda seed, nth: (wrong(),) if nth in shown else ())
    cell = judged(asking(1), runner)
    found = only(cell)

    assert (cell.status, found.confirmed, found.minimal) == ("flaky", False, False)
    assert (found.reruns, found.shown_again, found.shown_otherwise) == (executions - 1, again, 0)
    assert len(runner.seeds) == executions


def test_a_smaller_case_that_does_not_show_it_thoroughly_gives_way_to_the_first_case():
    asked = asking(1, smaller=(case_of(7),))
    runner = ActedRunner(lambda seed, nth: (wrong(),) if seed == 1 or nth == 1 else ())
    found = only(judged(asked, runner))

    assert (found.case, found.confirmed, found.minimal) == (case_of(1), True, False)
    assert (found.reruns, found.shown_again, found.shrink_executions) == (5, 5, 2)


def test_where_the_first_case_was_not_executed_again_it_is_before_it_is_called_flaky():
    class Elsewhere(ActedAsked):
        def smallest(self, corpus, case, outcome, check, *, budget):
            return super().smallest(corpus, self.smaller[0], outcome, check, budget=budget)

    asked = Elsewhere((ActedCorpus((case_of(1),)),), smaller=(case_of(7),))
    runner = ActedRunner(lambda seed, nth: (wrong(),) if seed == 1 or nth == 1 else ())
    found = only(judged(asked, runner))

    assert (found.case, found.confirmed, found.reruns) == (case_of(1), True, 5)
    assert runner.seeds.count(1) == 1 + 5


@pytest.mark.parametrize(
    ("status", "otherwise", "confirmed"),
    [
        (Status.FAILED, Status.FAILED, False),
        (Status.FAILED, Status.HUNG, True),
        (Status.HUNG, Status.ERROR, True),
    ],
)
def test_another_end_takes_the_place_of_a_violation_and_another_wrong_value_does_not(
    status, otherwise, confirmed
):
    def shows(seed, nth):
        return (wrong("first", status=status),) if nth == 1 else (wrong("other", status=otherwise),)

    cell = judged(asking(1), ActedRunner(shows))
    found = next(one for one in cell.violations if one.signature == "first")

    assert found.confirmed is confirmed
    assert (found.reruns, found.shown_again, found.shown_otherwise) == (5, 0, 5 * confirmed)


def test_a_violation_that_shows_beside_others_was_shown_again():
    def shows(seed, nth):
        return () if nth == 2 else (wrong("hang", status=Status.HUNG), wrong("first"))

    found = {one.signature: one for one in judged(asking(1), ActedRunner(shows)).violations}

    assert (found["first"].shown_again, found["first"].shown_otherwise) == (4, 0)


# ------------------------------------------------------------------------------ what making small may cost


def budgets(*statuses, executions=3, **fields):
    """The budgets of a cell with a violation of each status, each of which takes so many executions."""
    asked = asking(*range(len(statuses)), smaller=tuple(map(case_of, range(100, 99 + executions))))
    is_later = fields.pop("is_later", False)
    asked = ActedAsked(asked.corpora, smaller=asked.smaller, is_later=is_later)

    def shows(seed, nth):
        return (wrong(f"kind {seed}", status=statuses[seed]),) if seed < len(statuses) else ()

    judged(asked, ActedRunner(shows), **fields)
    return asked.budgets


def test_a_violation_has_its_own_budget_and_what_is_left_of_its_cells():
    failed = Status.FAILED
    assert budgets(failed, failed, failed, shrink_cost=10, cell_cost=15) == [10, 10, 9]
    assert budgets(failed, failed, shrink_cost=10, cell_cost=99, later_cost=4, is_later=True) == [4, 1]


def test_what_costs_more_uses_up_more_of_the_budget():
    assert budgets(Status.ERROR, Status.FAILED, shrink_cost=30, cell_cost=30) == [10, 30 - 3 * 3]
    assert budgets(Status.CRASHED, Status.FAILED, shrink_cost=30, cell_cost=30) == [5, 30 - 3 * 6]


def test_all_hangs_of_a_cell_share_twenty_executions():
    hung, failed = Status.HUNG, Status.FAILED
    found = budgets(hung, failed, failed, hung, shrink_cost=2000, cell_cost=2000)

    assert found == [20, 2000 - 3 * 20, 2000 - 3 * 20 - 3, 20 - 3]


def test_what_is_executed_to_make_a_hang_small_records_who_waits_for_whom():
    runner = ActedRunner(lambda seed, nth: (wrong("hang", status=Status.HUNG),))
    judged(asking(1), runner)

    assert [hung for _, _, hung in runner.executed] == [False, True, True]
    runner = ActedRunner(always)
    judged(asking(1), runner)
    assert not any(hung for _, _, hung in runner.executed)


def test_the_same_violation_in_another_variant_is_shown_by_the_case_that_is_known():
    asked = asking(1, smaller=(case_of(7),))
    first, second = (ActedRunner(shown_by(1, 7), localises=["gradient value"]) for _ in range(2))
    campaign = campaign_on(asked, first, second)
    judge_cell(campaign, ROW, "GPipe")
    found = only(judge_cell(campaign, ROW, "GPipe", "strict"))

    assert second.seeds == [1, 7, 7]
    assert second.judged_how[-1][:2] == (7, True)
    assert (found.case, found.confirmed, found.minimal, found.shrink_executions) == (
        case_of(7),
        True,
        True,  # as small as it became under the other variant
        1,
    )


@pytest.mark.parametrize("shown", [set(), {1}])
def test_a_known_case_that_does_not_show_it_twice_is_none_for_this_variant(shown):
    asked = asking(1, smaller=(case_of(7),))
    first = ActedRunner(shown_by(1, 7))
    second = ActedRunner(lambda seed, nth: (wrong(),) if seed == 1 or nth in shown else ())
    campaign = campaign_on(asked, first, second)
    judge_cell(campaign, ROW, "GPipe")
    found = only(judge_cell(campaign, ROW, "GPipe", "strict"))

    assert (found.case, found.confirmed) == (case_of(1), True)
    assert second.seeds.count(7) == 1 + len(shown)


def test_a_flaky_case_is_no_case_to_know():
    campaign = campaign_on(asking(1), ActedRunner(lambda seed, nth: (wrong(),) if nth == 1 else ()))
    judge_cell(campaign, ROW, "GPipe")

    assert campaign.smallest == {}


# ------------------------------------------------------------------------------ the largest case


def drawn_sizes(*ranks, shows=always, **fields):
    """A cell with cases on these numbers of ranks, whose seeds are 1, 2 and so on."""
    cases = tuple(case_of(seed, ranks=one) for seed, one in enumerate(ranks, 1))
    runner = ActedRunner(shows, localises=fields.pop("localises", ()))
    return judged(ActedAsked((ActedCorpus(cases),)), runner, **fields), runner


def test_the_largest_case_that_shows_the_same_line_again_is_told_beside_the_smallest():
    cell, runner = drawn_sizes(2, 4, 3, 4)
    found = only(cell)

    assert found.case.num_ranks == 2
    assert (found.large.case, found.large.line) == (case_of(2, ranks=4), "it is wrong")
    assert runner.judged_how[-1][:2] == (2, True)


def test_a_case_that_is_the_smallest_is_not_told_twice():
    assert only(drawn_sizes(2, 2)[0]).large is None


@pytest.mark.parametrize(
    "shows",
    [
        pytest.param(lambda seed, nth: () if (seed, nth) == (2, 2) else (wrong(),), id="not again"),
        pytest.param(
            lambda seed, nth: (wrong(message="other" if (seed, nth) == (2, 2) else "one"),), id="another line"
        ),
        pytest.param(lambda seed, nth: (wrong(status=Status.ERROR),), id="an error"),
        pytest.param(lambda seed, nth: (wrong(),) if nth == 1 else (), id="flaky"),
    ],
)
def test_a_largest_case_is_told_only_of_wrong_values_that_it_shows_every_time(shows):
    assert only(drawn_sizes(2, 4, shows=shows)[0]).large is None


def test_where_a_first_wrong_tensor_can_be_found_that_is_told_instead():
    cell, runner = drawn_sizes(2, 4, localises=["gradient value"])

    assert only(cell).large is None
    assert runner.localised_cases == [1]


def test_a_case_is_localised_once_for_all_its_violations():
    runner = ActedRunner(
        lambda seed, nth: (wrong(), wrong("output value"), wrong("order")),
        localises=["gradient value", "output value"],
    )
    campaign = campaign_on(asking(1), runner)
    cell = judge_cell(campaign, ROW, "GPipe")

    assert runner.localised_cases == [1]
    assert cell.executions == 3 + 1
    assert campaign.executed[case_of(1).digest] == 4


# ------------------------------------------------------------------------------ expected and earlier violations


def expectation(*stored, **fields):
    return Expectation(
        **{
            "requirement": "TRN-4",
            "status": "failed",
            "signature": "gradient value",
            "reason": "known",
            "issue": "https://example.org/7",
            "owner": "us",
            "expires": datetime.date(2031, 1, 1),
            "file": "known.toml",
            "line": 3,
            "stored": tuple(StoredCase(path=f"{seed}.json", case=case_of(seed)) for seed in stored),
            **fields,
        }
    )


def test_the_stored_cases_of_all_entries_are_executed_first_and_those_that_pass_are_stale():
    entries = (
        expectation(11, 12, 13),
        expectation(14, line=9, signature="output value"),
        expectation(15, requirement="TRN-1"),
    )
    runner = ActedRunner(shown_by(12))
    cell = judged(asking(1), runner, expectations=entries)

    assert runner.seeds == [11, 12, 13, 14, 1]
    assert cell.stale == ("11.json", "13.json", "14.json")
    found = only(cell)
    assert (found.case, found.expected, found.occurrences) == (case_of(12), "known.toml:3", 0)
    assert (found.confirmed, found.reruns, found.control, found.large) == (True, 0, None, None)


def test_a_stored_case_of_another_schedule_is_not_executed():
    case = msgspec.structs.replace(case_of(11), schedule="1F1B")
    stored = (StoredCase(path="a.json", case=case), StoredCase(path="b.json", case=case_of(12)))
    runner = ActedRunner(right)
    cell = judged(asking(1), runner, expectations=(expectation(stored=stored),))

    assert (runner.seeds, cell.stale) == ([12, 1], ("b.json",))


def test_a_stored_case_of_a_chance_that_passes_is_not_stale():
    entry = expectation(11, status=("failed", "flaky", "passed"))

    assert judged(asking(1), ActedRunner(right), expectations=(entry,)).stale == ()


def test_of_several_entries_each_has_the_stored_case_that_shows_its_own_signature():
    entries = (expectation(11), expectation(11, line=9, signature="output value"))

    def shows(seed, nth):
        return (wrong(), wrong("output value")) if seed == 11 else ()

    cell = judged(asking(1), ActedRunner(shows), expectations=entries)

    assert {one.signature: one.expected for one in cell.violations} == {
        "gradient value": "known.toml:3",
        "output value": "known.toml:9",
    }
    assert cell.stale == ()


def test_an_expected_violation_of_a_drawn_case_is_checked_again_and_not_made_small():
    asked = asking(1, smaller=(case_of(7),))
    runner = ActedRunner(lambda seed, nth: (wrong(),) if nth == 1 else (), localises=["gradient value"])
    found = only(judged(asked, runner, expectations=(expectation(),)))

    assert (runner.seeds, asked.budgets) == ([1, 1], [])
    assert (found.confirmed, found.minimal, found.reruns, found.shown_again) == (False, False, 1, 0)
    assert found.localisation is None
    assert runner.localised_cases == []
    sure = only(judged(asked, ActedRunner(always), expectations=(expectation(),)))
    assert (sure.confirmed, sure.reruns, sure.shown_again) == (True, 1, 1)


def test_the_same_defect_expected_at_some_sizes_only_is_two_violations():
    cases = (case_of(1), case_of(2, ranks=3))
    cell = judged(ActedAsked((ActedCorpus(cases),)), ActedRunner(always), expectations=(expectation(p=(3,)),))

    assert [(one.case.num_ranks, one.expected) for one in cell.violations] == [(2, ""), (3, "known.toml:3")]
    unexpected, expected = (one.id for one in cell.violations)
    assert unexpected == identifier_of("TRN-4:GPipe:default", "failed/gradient value") != expected


@pytest.mark.parametrize(("torch", "label"), [(">=2.0", "known.toml:3"), ("<2.0", "")])
def test_an_entry_about_some_releases_of_torch_expects_nothing_of_others(torch, label):
    cell = judged(asking(1), ActedRunner(always), expectations=(expectation(torch=torch),))

    assert only(cell).expected == label


def earlier(seed, *, schedule="GPipe", confirmed=True, minimal=True, signature="gradient value"):
    case = msgspec.structs.replace(case_of(seed), schedule=schedule)
    return SimpleNamespace(
        case=case, status="failed", signature=signature, confirmed=confirmed, minimal=minimal
    )


def after(*violations):
    return Earlier(by_cell={("TRN-4", "GPipe", "default"): violations})


def test_the_last_runs_violations_are_executed_first_and_told_as_small_as_they_were():
    runner = ActedRunner(shown_by(1, 11, 13))
    cell = judged(asking(1), runner, earlier=after(earlier(12), earlier(11), earlier(13)))
    found = only(cell)

    assert runner.seeds == [12, 11, 13, 1]
    assert (found.case, found.confirmed, found.minimal, found.reruns) == (case_of(11), True, True, 0)
    assert (cell.judgements, found.occurrences) == (4, 3)


def test_an_earlier_case_that_this_run_does_not_allow_or_ask_is_not_executed():
    runner = ActedRunner(right)
    known = after(earlier(11), earlier(12), earlier(13, schedule="1F1B"), earlier(14))
    judged(asking(1, not_about=frozenset({12})), runner, earlier=known, forbidden=[11])

    assert runner.seeds == [14, 1]


def test_an_earlier_violation_that_was_not_confirmed_is_shown_once_more():
    runner = ActedRunner(shown_by(11))
    found = only(judged(asking(1), runner, earlier=after(earlier(11, confirmed=False))))

    assert (found.confirmed, found.minimal, found.reruns, found.shown_again) == (True, False, 1, 1)
    assert runner.seeds == [11, 1, 11]


def test_an_earlier_case_that_shows_something_else_now_confirms_nothing():
    runner = ActedRunner(shown_by(11, 12))
    known = after(earlier(11, signature="output value"), earlier(12, minimal=False))
    found = only(judged(asking(1), runner, earlier=known))

    assert (found.case, found.signature, found.minimal) == (case_of(11), "gradient value", False)
    assert found.reruns == 1  # 12 is not the case that showed it first


# ------------------------------------------------------------------------------ controls

CONTROL = case_of(21)


def controlled(runner, *seeds, **fields):
    asked = asking(*seeds, found=(("without it", CONTROL),), not_about=frozenset({21}), **fields)
    return judged(asked, runner)


def test_a_violation_that_a_control_explains_is_blocked_and_not_localised():
    cause = wrong("gradient value", message="another's")
    runner = ActedRunner(always, others={"TRN-1": lambda *_: (cause,)}, localises=["gradient value"])
    cell = controlled(runner, 1, 2, explains=("TRN-1",))
    found = only(cell)

    assert (cell.status, found.blocked_by) == ("blocked", "TRN-1")
    assert cell.reason.startswith("blocked by TRN-1")
    assert (found.control.words, found.control.case, found.control.message) == (
        "without it",
        CONTROL,
        "another's",
    )
    assert (found.localisation, found.large, runner.localised_cases) == (None, None, [])


def test_a_violation_that_no_control_shows_keeps_the_control_that_passed():
    runner = ActedRunner(always, others={"TRN-1": right}, localises=["gradient value"])
    cell = controlled(runner, 1, explains=("TRN-1",))
    found = only(cell)

    assert (cell.status, found.control.requirement, found.control.status) == ("failed", "", "passed")
    assert found.control.digest == CONTROL.digest
    assert runner.localised_cases == [1]


@pytest.mark.parametrize(("shown", "control"), [((), None), ((wrong(),), "TRN-1")])
def test_of_what_shows_by_chance_a_control_that_passes_proves_nothing(shown, control):
    runner = ActedRunner(
        lambda seed, nth: always(seed, nth) if nth == 1 else (), others={"TRN-1": lambda *_: shown}
    )
    found = only(controlled(runner, 1, explains=("TRN-1",)))

    assert not found.confirmed
    assert (found.control and found.control.requirement) == control


def test_one_control_serves_all_violations_that_have_it():
    runner = ActedRunner(
        lambda seed, nth: (wrong(), wrong("output value")), others={"TRN-1": right, "FWD-1": right}
    )
    controlled(runner, 1, explains=("FWD-1", "TRN-1"))

    assert [(seed, rows) for seed, rows, _ in runner.executed if seed == 21] == [(21, ("FWD-1", "TRN-1"))]


def test_requirements_that_watch_otherwise_have_executions_of_their_own():
    runner = ActedRunner(always, others={"TRN-1": right, "FWD-1": right, "COM-1": right}, stores=False)
    runner.groups = (("FWD-1",), ("COM-1",))
    controlled(runner, 1, explains=("FWD-1", "TRN-1", "COM-1"))

    assert [rows for seed, rows, _ in runner.executed if seed == 21] == [("FWD-1",), ("COM-1",), ("TRN-1",)]


def test_controls_of_a_hang_record_who_waits_for_whom():
    def hangs(seed, nth):
        return (wrong("hang", status=Status.HUNG),)

    for shows, hung in ((hangs, True), (always, False)):
        runner = ActedRunner(shows, others={"TRN-1": right})
        controlled(runner, 1, explains=("TRN-1",))
        assert [one for seed, _, one in runner.executed if seed == 21] == [hung]


def test_an_earlier_requirement_is_asked_in_the_second_execution_and_then_in_new_ones():
    """Which shows by chance what it shows; the second was made when the violation was confirmed."""

    def shows(seed, nth):
        return (wrong(),) if nth <= 3 else ()

    runner = ActedRunner(shows, others={"TRN-1": lambda seed, nth: (wrong(),) if nth == 6 else ()})
    found = only(judged(asking(1, before=("TRN-1",)), runner))

    assert runner.seeds == [1, 1, 1]
    assert found.blocked_by == ""
    runner = ActedRunner(
        lambda seed, nth: (wrong(),) if nth in (1, 3) else (),
        others={"TRN-1": lambda seed, nth: (wrong(),) if nth == 8 else ()},
    )
    found = only(judged(asking(1, before=("TRN-1",)), runner))
    assert found.blocked_by == "TRN-1"
    assert runner.seeds == [1] * 8
    assert [rows for _, rows, _ in runner.executed[6:]] == [("TRN-4", "TRN-1")] * 2


# ------------------------------------------------------------------------------ progress


def test_a_listener_is_told_what_is_done_and_how_far_it_is():
    told = []
    runner = ActedRunner(shown_by(2), others={"TRN-1": right})
    asked = asking(1, 2, found=(("without it", CONTROL),), not_about=frozenset({21}), explains=("TRN-1",))
    judged(asked, runner, listener=told.append)

    assert {(one.requirement, one.schedule) for one in told} == {("TRN-4", "GPipe")}
    doing = [one.doing for one in told]
    assert list(dict.fromkeys(doing)) == ["judging", "shrinking", "controlling"]
    assert [(one.judged, one.violations) for one in told[:4]] == [(0, 0), (1, 0), (1, 0), (2, 1)]
    assert doing.count("shrinking") == 2
    # once before each execution of shrinking and controlling
    assert doing.index("shrinking") == 4
