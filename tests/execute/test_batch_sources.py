"""Sources go on from step to step of their kind, and end where the case says."""

import itertools

import pytest
import torch
from msgspec import structs

from pipeconform.case.build import data
from pipeconform.case.case import Eval, Train, Zero
from pipeconform.case.mistakes import Mistake
from pipeconform.execute.batch_sources import BatchSources
from tests.case.examples import small_case

TRAIN = Train(batch_size=4, num_microbatches=2, from_source=True)
EVAL = Eval(batch_size=6, num_microbatches=3, from_source=True)


def case_of(*program):
    return structs.replace(small_case(), program=program)


def own(case, index):
    """The microbatches that a step is to have."""
    return [micro.args[0] for micro in data.make_batch(case, index).microbatches]


def taken(source, number):
    return [micro.args[0] for micro in itertools.islice(source, number)]


def same(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.fixture
def at():
    sources = BatchSources()
    return lambda case, index: sources.at(case, index, lambda i: data.make_batch(case, i))


def test_training_steps_share_a_source_and_evaluations_another(at):
    case = case_of(TRAIN, EVAL, Zero(), TRAIN, EVAL)

    assert same(taken(at(case, 0), 2), own(case, 0))
    assert same(taken(at(case, 1), 3), own(case, 1))
    assert same(taken(at(case, 3), 2), own(case, 3))
    assert same(taken(at(case, 4), 3), own(case, 4))


def test_what_a_step_takes_beyond_its_own_is_missing_in_the_next(at):
    case = case_of(TRAIN, Zero(), TRAIN)
    taken(at(case, 0), 3)

    assert same(taken(at(case, 2), 2), [own(case, 2)[1], own(case, 0)[0]])


def test_evaluations_end_with_their_last_step_and_training_begins_again(at):
    case = case_of(TRAIN, EVAL)

    assert same(taken(at(case, 0), 5), [*own(case, 0), *own(case, 0), own(case, 0)[0]])
    assert same(taken(at(case, 1), 5), own(case, 1))


@pytest.mark.parametrize("number", [0, 1])
def test_a_source_ends_where_the_mistake_says(at, number):
    wrong = structs.replace(TRAIN, mistake=Mistake(where="source", how="ends", microbatch=number))
    case = case_of(TRAIN, Zero(), wrong)

    assert same(taken(at(case, 0), 2), own(case, 0))
    assert same(taken(at(case, 2), 2), own(case, 2)[:number])
    assert len(taken(at(case, 0), 9)) == 2 + number  # begun again, and ended there again


def test_a_step_that_is_repeated_has_a_new_source(at):
    case = case_of(TRAIN, Zero(), TRAIN)
    first = at(case, 0)
    taken(first, 1)

    again = at(case, 0)

    assert again is not first
    assert same(taken(again, 2), own(case, 0))
    assert same(taken(at(case, 2), 2), own(case, 2))
