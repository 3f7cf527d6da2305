import dataclasses

import pytest
from hypothesis import strategies as st

from pipeconform.campaign.corpus import Corpus, Interesting, corpus_seed, drawn, run_strategy
from pipeconform.campaign.minimise import Budget, minimise
from pipeconform.case.case import Case
from pipeconform.case.draw.claimed import is_claimed, members_within, reachable
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.subjects.together import pairs_in
from pipeconform.case.focus import Focus, Limits
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from tests.case.examples import EVERYTHING

OUTCOME = Outcome(Status.FAILED, Finding(kind="wrong", message="wrong"))


def _corpus(**changes):
    fields = {
        "limits": Limits(capabilities=EVERYTHING),
        "schedule": EVERYTHING.schedules[0],
        "focus": Focus.PLAIN,
        "seed": 0,
        "size": 20,
    }
    return Corpus(**{**fields, **changes})


def test_a_corpus_is_drawn_alike_every_time_and_without_repetition() -> None:
    again = []
    run_strategy(_corpus(), lambda case: again.append(case) and None, max_examples=20)
    digests = [case.digest for case in drawn(_corpus())]

    assert digests == list(dict.fromkeys(case.digest for case in again))
    assert len(digests) >= 15


@pytest.mark.parametrize("change", [{"seed": 1}, {"focus": Focus.SUM}, {"schedule": EVERYTHING.schedules[1]}])
def test_another_seed_focus_or_schedule_is_another_corpus(change) -> None:
    assert corpus_seed(_corpus(**change)) != corpus_seed(_corpus())
    assert drawn(_corpus(**change)) != drawn(_corpus())


def test_members_of_a_subject_take_turns_over_the_schedules_that_train() -> None:
    """One that only evaluates takes none: what it would have drawn would be missing."""
    assert SUBJECTS[Focus.TOGETHER].trains
    size, limits = 3, Limits(capabilities=EVERYTHING, max_ranks=4)

    def members(schedule, size):
        """The two things that each case has at once."""
        cases = drawn(_corpus(focus=Focus.TOGETHER, schedule=schedule, size=size, limits=limits))
        return [[(pair.first.focus, pair.second.focus) for pair in pairs_in(case)] for case in cases]

    first, last = (one for one in EVERYTHING.schedules if one.trains)
    assert [one.name for one in EVERYTHING.schedules] == [first.name, "ForwardOnly", last.name]
    each = members(first, 2 * size)
    assert len({pair for pairs in each for pair in pairs}) == 2 * size
    assert members(first, size) == each[:size]
    assert members(last, size) == each[size:]


@pytest.mark.parametrize("focus", [focus for focus, one in SUBJECTS.items() if one.members])
def test_in_each_round_of_turns_a_member_has_another_case(focus) -> None:
    limits, schedule = Limits(capabilities=EVERYTHING, max_ranks=4), EVERYTHING.schedules[0]
    num_members = len(members_within(limits, schedule, SUBJECTS[focus]))
    size = 3 * min(num_members, 8)

    few = drawn(_corpus(focus=focus, size=min(num_members, size), limits=limits))
    many = drawn(_corpus(focus=focus, size=size, limits=limits))

    assert len(many) > 2 * min(num_members, 8)
    # the first turns are the same however many follow, but for the last case, which may make way for a pipeline
    assert many[: len(few) - 1] == few[:-1]


def test_our_own_errors_end_a_drawing_at_once_and_unshrunk() -> None:
    calls = []

    def body(case):
        calls.append(case)
        raise HarnessError("no processes")

    with pytest.raises(HarnessError, match="no processes"):
        run_strategy(_corpus(), body, max_examples=20, shrink=True)
    assert len(calls) == 1


def test_what_a_body_points_at_is_shrunk() -> None:
    seen = []

    def body(case):
        wide = case.model.width >= 3
        seen.append((wide, case.model.width))
        return wide

    with pytest.raises(Interesting):
        run_strategy(_corpus(), body, max_examples=20, shrink=True)
    assert min(width for wide, width in seen if wide) == 3


def _late_target():
    """A case late in the corpus that has at least two ranks."""
    return next(case for case in reversed(drawn(_corpus())) if case.num_ranks >= 2 and case.model.width > 3)


def test_a_counter_example_becomes_the_smallest_case_that_still_shows_it() -> None:
    target = _late_target()

    found = minimise(
        _corpus(),
        target,
        OUTCOME,
        lambda case: OUTCOME if case.num_ranks >= 2 and case.model.width >= 2 else None,
        budget=Budget(executions=1000),
    )

    assert (found.case.num_ranks, found.case.model.width, found.minimal, found.confirmed) == (
        2,
        2,
        True,
        True,
    )
    assert all(len(stage.blocks) == 1 for stage in found.case.model.stages)
    assert {run.num_microbatches for run in found.case.runs} == {1}


def test_every_candidate_is_executed_once() -> None:
    executed = []

    def check(case):
        executed.append(case.digest)
        return OUTCOME if case.num_ranks >= 2 else None

    found = minimise(_corpus(), _late_target(), OUTCOME, check, budget=Budget(executions=1000))

    assert len(executed) == len(set(executed)) == found.executions


def test_a_spent_budget_gives_the_best_so_far_and_says_so() -> None:
    found = minimise(
        _corpus(),
        _late_target(),
        OUTCOME,
        lambda case: OUTCOME if case.num_ranks >= 2 else None,
        budget=Budget(executions=2),
    )

    assert (found.minimal, found.confirmed, found.executions) == (False, True, 2)


def test_what_does_not_happen_again_is_reported_unconfirmed() -> None:
    target = _late_target()

    found = minimise(_corpus(), target, OUTCOME, lambda _: None, budget=Budget(executions=9))

    assert (found.case, found.confirmed, found.executions) == (target, False, 1)


class _Counted:
    """A few cases, and how often each has been drawn."""

    size = 50

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def hypothesis_seed(self, purpose: str) -> int:
        return 1

    def strategy(self) -> st.SearchStrategy[Case]:
        return st.sampled_from(drawn(_corpus())[:6]).map(self._noted)

    def _noted(self, case: Case) -> Case:
        self.drawn.append(case.digest)
        return case


def test_when_the_case_itself_does_not_show_it_again_nothing_more_is_drawn() -> None:
    for target in drawn(_corpus())[:6]:
        counted = _Counted()
        minimise(counted, target, OUTCOME, lambda _: None, budget=Budget(executions=9))
        assert counted.drawn.index(target.digest) == len(counted.drawn) - 1


def test_an_error_of_the_harness_while_shrinking_is_not_a_finding() -> None:
    def check(case):
        raise HarnessError("the oracle failed")

    with pytest.raises(HarnessError, match="the oracle failed"):
        minimise(_corpus(), _late_target(), OUTCOME, check, budget=Budget(executions=9))


def _plain(schedule, *, size, max_ranks=4, **changes):
    claims = dataclasses.replace(EVERYTHING, **changes)
    claim = claims.schedule(schedule)
    limits = Limits(capabilities=claims, min_ranks=1, max_ranks=max_ranks)
    return drawn(Corpus(limits=limits, schedule=claim, focus=Focus.PLAIN, seed=0, size=size))


@pytest.mark.parametrize("schedule", ["GPipe", "V"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_some_plain_case_has_more_microbatches_than_ranks(schedule, size):
    cases = _plain(schedule, size=size)

    assert any(
        case.num_ranks > 1 and all(run.num_microbatches > case.num_ranks for run in case.runs)
        for case in cases
    )
    assert len(cases) <= size + 1


def test_on_one_rank_there_is_none():
    assert {case.num_ranks for case in _plain("GPipe", size=2, max_ranks=1)} == {1}


_GPIPE = EVERYTHING.schedule("GPipe")
_FOUR_RANKS = Limits(capabilities=EVERYTHING, min_ranks=1, max_ranks=4)


@pytest.mark.parametrize(
    "focus",
    [one for one in Focus if is_claimed(one, _GPIPE, EVERYTHING) and reachable(_FOUR_RANKS, _GPIPE, one)],
)
def test_of_few_cases_one_has_several_microbatches_on_several_ranks(focus):
    corpora = [
        Corpus(limits=_FOUR_RANKS, schedule=_GPIPE, focus=focus, seed=seed, size=2) for seed in range(4)
    ]

    least = 1 + (SUBJECTS[focus].form == "replicas")
    for cases in map(drawn, corpora):
        assert any(
            case.num_ranks > 1
            and any(run.num_microbatches > 1 for run in case.runs)
            and case.world.num_replicas >= least
            for case in cases
        )
        assert len(cases) <= 2 + (focus is Focus.PLAIN)


def test_a_case_that_makes_way_is_the_last_one():
    corpora = [
        Corpus(limits=_FOUR_RANKS, schedule=claim, focus=Focus.BUFFERS, seed=seed, size=3)
        for claim in EVERYTHING.schedules
        for seed in range(4)
    ]
    for corpus in corpora:
        as_drawn = []
        run_strategy(corpus, as_drawn.append, max_examples=corpus.size)

        kept = [case.digest for case in drawn(corpus)]
        assert kept[:2] == list(dict.fromkeys(case.digest for case in as_drawn))[:2]
