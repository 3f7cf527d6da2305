"""Sizes are drawn within the limits, the claim and what a subject needs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeconform.adapter import DataParallelClaim, Feature, MicrobatchRule, ScheduleClaim
from pipeconform.case.case import Train
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.sizes import draw_size, other_size, shapes, some_m, table
from pipeconform.case.draw.subject import Draft
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.program import Eval, LossSpec
from tests.case.examples import EVERYTHING, small_case

PLAIN = SUBJECTS[Focus.PLAIN]
ONE = ScheduleClaim(name="One")
BOTH = ScheduleClaim(name="Both", stages_per_rank=(1, 2))
TWO = ScheduleClaim(name="Two", stages_per_rank=(2,))


def _limits(max_ranks: int = 4, min_ranks: int = 1, **capabilities) -> Limits:
    return Limits(capabilities=replace(EVERYTHING, **capabilities), max_ranks=max_ranks, min_ranks=min_ranks)


def test_numbers_of_ranks_and_stages_keep_to_all_limits() -> None:
    def found(claim: ScheduleClaim, limits: Limits, **least: int) -> set[tuple[int, int]]:
        return set(shapes(limits, claim, **least))

    assert found(ONE, _limits(3)) == {(1, 1), (2, 1), (3, 1)}
    assert found(ONE, _limits(3, 2)) == {(2, 1), (3, 1)}
    assert found(ONE, _limits(3), least_ranks=3) == {(3, 1)}
    assert found(BOTH, _limits(2), least_stages=2) == {(1, 2), (2, 1), (2, 2)}
    assert found(TWO, _limits(6)) == {(1, 2), (2, 2), (3, 2), (4, 2)}
    assert found(ONE, _limits(9)) == {(p, 1) for p in range(1, 9)}
    assert found(replace(ONE, min_ranks=2, max_ranks=3), _limits(4)) == {(2, 1), (3, 1)}


def test_numbers_of_microbatches_are_those_around_the_ranks_and_the_least_that_is_taken() -> None:
    def found(claim: ScheduleClaim, p: int, v: int = 1) -> set[int]:
        return set(some_m(claim, p, v))

    assert found(ONE, 2) == {1, 2, 3, 4, 5, 6, 7}
    assert found(replace(ONE, microbatches=MicrobatchRule.EVEN), 2) == {2, 4, 6}
    assert found(replace(ONE, microbatches=MicrobatchRule.MULTIPLE_OF_RANKS), 4) == {4, 8}
    assert found(replace(ONE, min_microbatches=20), 3) == {20, 21, 22, 23}
    assert found(replace(ONE, min_microbatches_per_rank=2), 4) == {8, 9, 10, 12}


def test_one_microbatch_is_drawn_half_as_often_as_others() -> None:
    assert some_m(ONE, 2, 1).count(1) == 1
    assert some_m(ONE, 2, 1).count(2) == 2


@pytest.mark.parametrize(
    ("claim", "one_each", "drawn"), [(BOTH, True, {1}), (BOTH, False, {1, 2}), (TWO, True, {2})]
)
def test_one_stage_each_is_drawn_where_that_is_possible(claim, one_each, drawn) -> None:
    found = set()
    for at in range(12):
        d = Drawing(lambda entries, at=at: entries[at % len(entries)], _limits(), claim)
        found.add(draw_size(d, PLAIN, one_each=one_each)[1])

    assert found == drawn


def test_several_microbatches_are_drawn_for_subjects_that_need_them() -> None:
    several = next(one for one in SUBJECTS.values() if one.several_microbatches)
    first = Drawing(lambda entries: entries[0], _limits(), ONE)
    only = Drawing(
        lambda entries: entries[0],
        _limits(),
        replace(ONE, microbatches=MicrobatchRule.MULTIPLE_OF_RANKS, max_ranks=1),
    )

    assert draw_size(first, PLAIN)[2] == 1
    assert draw_size(first, several)[2] == 2
    assert draw_size(only, several)[2] > 1


def test_the_ranks_of_all_replicas_keep_to_the_limits() -> None:
    subject = SUBJECTS[Focus.REPLICAS]
    rows = {tuple(row) for row in table(_limits(4), ONE, subject)}

    assert rows == {(1, 1, 2, 1), (2, 1, 2, 1), (1, 1, 3, 1), (2, 1, 1, 1)}
    assert {row[0] * row[2] for row in table(_limits(8, 5), ONE, subject)} == {6, 8}
    assert {row[2] for row in table(_limits(4), ONE, SUBJECTS[Focus.REPLICA_NORMS])} == {2, 3}
    assert {row[0] for row in table(_limits(8), replace(ONE, max_ranks=2), subject)} == {1, 2}


def test_tensor_parallel_replicas_need_a_claim_of_shards() -> None:
    subject = SUBJECTS[Focus.TENSOR]
    own = EVERYTHING.tensor_parallel

    def replicas(**capabilities) -> set[int]:
        return {row[2] for row in table(_limits(8, **capabilities), ONE, subject)}

    assert replicas() == {1, 2}
    assert replicas(tensor_parallel=replace(own, sharded=False)) == {1}
    assert replicas(data_parallel=None) == {1}
    assert replicas(data_parallel=DataParallelClaim(wrappers=("ddp",))) == {1}
    assert all(p * d * t <= 4 for p, _, d, t in table(_limits(4), ONE, subject))
    assert {row[0] for row in table(_limits(8), replace(ONE, min_ranks=2, max_ranks=3), subject)} == {2, 3}


@pytest.mark.parametrize(
    ("features", "shapes_differ", "numbers_differ"),
    [
        ({Feature.VARYING_SHAPES}, True, False),
        ({Feature.VARYING_MICROBATCHES}, False, True),
        ({Feature.VARYING_SHAPES, Feature.VARYING_MICROBATCHES}, True, True),
        (set(), False, False),
    ],
)
def test_another_size_differs_as_far_as_claimed(features, shapes_differ, numbers_differ) -> None:
    """The draft has 2 microbatches of 2 samples."""
    case = small_case()
    run = Train(batch_size=4, num_microbatches=2)
    draft = Draft(
        model=case.model,
        world=case.world,
        train=run,
        evaluate=Eval(batch_size=4, num_microbatches=2),
        loss=LossSpec(),
    )
    found = set()
    for at in range(60):
        d = Drawing(
            lambda entries, at=at: entries[at % len(entries)], _limits(features=frozenset(features)), ONE
        )
        d.num_ranks, d.stages_per_rank, d.num_microbatches = 2, 1, 2
        found.add(other_size(d, draft))

    changes = {(m != 2, rows != 2) for m, rows in found}
    expected = {
        (numbers, size)
        for numbers in {False, numbers_differ}
        for size in {False, shapes_differ}
        if numbers or size or not features
    }
    assert changes == expected
