"""Pairs of subjects: which there are, what is drawn of them, and their two controls."""

import itertools

import pytest

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.draw.cases import draw_case
from pipeconform.case.draw.claimed import members_within
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subjects.together import (
    APART,
    OPTIONS,
    PAIRS,
    PARTS,
    PARTS_OF_REPLICAS,
    RANKS,
    _in_turn,
    pairs_in,
)
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.claims import Capabilities, ScheduleClaim
from tests.case.draw.drawn import choosing
from tests.case.draw.test_subjects import REFERENCE, SEEDS, drawn_of
from tests.case.examples import EVERYTHING

TRAINED = ScheduleClaim(name="A", stages_per_rank=(1, 2))
LIMITS = Limits(
    capabilities=Capabilities(
        schedules=(TRAINED, ScheduleClaim(name="B", stages_per_rank=(1, 2))), features=EVERYTHING.features
    )
)


TOGETHER = (Focus.TOGETHER, Focus.REPLICAS_TOGETHER, Focus.TENSOR_TOGETHER)


def corpus(schedule, size):
    return drawn(Corpus(limits=LIMITS, schedule=schedule, focus=Focus.TOGETHER, seed=0, size=size))


def test_any_two_parts_go_together_or_there_is_a_reason():
    pairs = [pair.foci for pair in PAIRS]
    both = {
        *itertools.combinations([one.focus for one in PARTS], 2),
        *((option.focus, part.focus) for option in OPTIONS for part in PARTS),
        *(
            (ranks.focus, part.focus)
            for ranks in RANKS
            for part in (PARTS_OF_REPLICAS if ranks.form == "replicas" else PARTS)
        ),
    }

    assert {*pairs, *APART} == set(map(frozenset, both))
    assert len(set(pairs)) == len(pairs)
    assert not set(pairs) & set(APART)
    assert all(APART.values())


def test_the_pairs_of_stages_are_all_that_come_in_turn_and_go_together():
    turns = [frozenset({one.focus, other.focus}) for one, other in _in_turn()]

    # each with the others, and with each option
    assert len(set(turns)) == len(turns) == len(PARTS) * (len(PARTS) - 1) // 2 + len(OPTIONS) * len(PARTS)
    assert [pair.foci for pair in PAIRS if pair.focus is Focus.TOGETHER] == [
        both for both in turns if both not in APART
    ]


def test_a_pair_needs_what_either_of_its_parts_needs():
    for pair in PAIRS:
        parts = (pair.first, pair.second)
        assert pair.subject.several_microbatches == any(one.several_microbatches for one in parts)
        assert pair.subject.squares == any(one.squares for one in parts)
        assert pair.subject.least_stages == max(one.least_stages for one in parts)
        assert all(one.needs <= pair.subject.needs for one in parts)


def test_neighbours_come_first_and_what_is_compiled_last():
    first = [pair.foci for pair in PAIRS if pair.focus is Focus.TOGETHER]
    compiled = [Focus.COMPILED in foci for foci in first]

    assert set.union(*map(set, first[:15])) >= {one.focus for one in PARTS} - {Focus.COMPILED}
    assert compiled == sorted(compiled)


def test_pairs_take_turns_so_that_no_two_small_corpora_are_alike():
    here, there = (corpus(schedule, 3) for schedule in LIMITS.capabilities.schedules)
    first, second = ({pair.name for case in cases for pair in pairs_in(case)} for cases in (here, there))

    assert len(first) == len(second) == 3
    assert not first & second


@pytest.mark.parametrize("focus", TOGETHER)
@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_what_is_drawn_of_a_pair_has_both(focus, schedule):
    claim = REFERENCE.capabilities.schedule(schedule)
    drawn_pairs = [
        (pair, draw_case(Drawing(choosing(seed), REFERENCE, claim), pair.subject))
        for pair in PAIRS
        if pair.focus is focus and members_within(REFERENCE, claim, pair.subject)
        for seed in SEEDS
    ]

    assert drawn_pairs
    assert [pair.name for pair, case in drawn_pairs if not pair.is_in(case)] == []
    assert {focus} == set().union(*(traits(case) for _, case in drawn_pairs))
    # dropout masks are recorded of one replica only
    assert not any(case.draws_masks and case.world.num_replicas > 1 for _, case in drawn_pairs)


@pytest.mark.slow
def test_a_large_corpus_has_them_all():
    pairs = [pair.name for pair in PAIRS if pair.focus is Focus.TOGETHER]
    found = {pair.name for case in corpus(TRAINED, len(pairs)) for pair in pairs_in(case)}

    assert found == set(pairs)


@pytest.mark.parametrize(
    "case", [case for focus in TOGETHER for case in drawn_of(focus)[:20]], ids=lambda case: case.digest
)
def test_each_control_lacks_one_of_the_two(case):
    for pair in pairs_in(case):
        for _, control in pair.controls_of(case):
            assert not pair.is_in(control)
            assert (control.seed, control.schedule) == (case.seed, case.schedule)


@pytest.mark.parametrize("focus", [focus for focus in Focus if focus not in TOGETHER])
def test_cases_of_one_subject_are_not_taken_for_a_pair(focus):
    assert all(traits(case).isdisjoint(TOGETHER) for case in drawn_of(focus))
