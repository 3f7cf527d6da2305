"""Pairs of subjects: which there are, what is drawn of them, and their two controls."""

import itertools

import pytest

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.draw.subjects.together import APART, PAIRS, PARTS, pairs_in
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.claims import Capabilities, ScheduleClaim
from tests.case.draw.test_subjects import drawn_of
from tests.case.examples import EVERYTHING

TRAINED = ScheduleClaim(name="A", stages_per_rank=(1, 2))
LIMITS = Limits(
    capabilities=Capabilities(
        schedules=(TRAINED, ScheduleClaim(name="B", stages_per_rank=(1, 2))), features=EVERYTHING.features
    )
)


def corpus(schedule, size):
    return drawn(Corpus(limits=LIMITS, schedule=schedule, focus=Focus.TOGETHER, seed=0, size=size))


def test_any_two_parts_go_together_or_there_is_a_reason():
    assert {pair.foci for pair in PAIRS} | set(APART) == {
        frozenset({first.focus, second.focus}) for first, second in itertools.combinations(PARTS, 2)
    }
    assert not {pair.foci for pair in PAIRS} & set(APART)
    assert all(APART.values())


def test_pairs_take_turns_so_that_no_two_small_corpora_are_alike():
    here, there = (corpus(schedule, 3) for schedule in LIMITS.capabilities.schedules)
    first, second = ({pair.name for case in cases for pair in pairs_in(case)} for cases in (here, there))

    assert len(first) == len(second) == 3
    assert not first & second


@pytest.mark.slow
def test_a_large_corpus_has_them_all():
    found = {pair.name for case in corpus(TRAINED, 60) for pair in pairs_in(case)}

    assert found == {pair.name for pair in PAIRS}


@pytest.mark.parametrize("case", drawn_of(Focus.TOGETHER)[:20], ids=lambda case: case.digest)
def test_each_control_lacks_one_of_the_two(case):
    for pair in pairs_in(case):
        for _, control in pair.controls_of(case):
            assert not pair.is_in(control)
            assert (control.seed, control.schedule) == (case.seed, case.schedule)


@pytest.mark.parametrize(
    "focus", [one.focus for one in PARTS] + [Focus.EVAL_LOSSES, Focus.CLIPPED, Focus.LOAD]
)
def test_cases_of_one_subject_are_not_taken_for_a_pair(focus):
    assert all(Focus.TOGETHER not in traits(case) for case in drawn_of(focus))
