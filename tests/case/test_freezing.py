"""Stages can be frozen and unfrozen between steps, as long as something is trained in each training step."""

from __future__ import annotations

import pytest
from msgspec import structs

from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Eval, Freeze, Optimize, Sgd, Split, Stage, Train, World, Zero
from pipeconform.case.freezing import is_trainable
from pipeconform.case.replicas import Replicas
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case, with_model

TRAIN, EVAL = Train(batch_size=4, num_microbatches=2), Eval(batch_size=4, num_microbatches=2)
BOTH = (Freeze(stage=0), Freeze(stage=1))


def _case(*program) -> Case:
    return small_case(program=program)


@pytest.mark.parametrize(
    "program",
    [
        (Freeze(stage=0), TRAIN, Zero(), Freeze(stage=0, frozen=False), TRAIN),
        (TRAIN, Freeze(stage=1), TRAIN),
        (*BOTH, EVAL),
        (*BOTH, Freeze(stage=1, frozen=False), TRAIN),
    ],
)
def test_one_stage_is_trained_wherever_a_step_trains(program) -> None:
    assert _case(*program).program == program


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ((*BOTH, TRAIN), r"program\[2\] trains, but every stage is frozen by then"),
        ((TRAIN, *BOTH, TRAIN), r"program\[3\] trains, but every stage is frozen by then"),
        ((Freeze(stage=2), TRAIN), r"program\[0\].stage is 2: expected a stage of the model, 0 to 1"),
        ((Freeze(stage=-1), TRAIN), r"program\[0\].stage is -1: expected a stage of the model, 0 to 1"),
    ],
)
def test_what_cannot_be_frozen_is_refused(program, words: str) -> None:
    with pytest.raises(BadCaseError, match=words):
        _case(*program)


def test_a_stage_that_is_frozen_when_made_counts_until_it_is_unfrozen() -> None:
    stages = (Stage(blocks=(Linear(),), frozen=True), Stage(blocks=(Linear(),)))
    unfrozen = with_model(_case(TRAIN, Freeze(stage=0, frozen=False), Freeze(stage=1), TRAIN), stages=stages)

    assert [is_trainable(stage) for stage in unfrozen.model.stages] == [False, True]
    with pytest.raises(BadCaseError, match="every stage is frozen by then"):
        structs.replace(unfrozen, program=(Freeze(stage=1), TRAIN))


_FOUR = World(size=4, pipeline_ranks=(0, 1))
BESIDE = {
    "an optimizer": lambda case: structs.replace(
        case, optimizer=Sgd(lr=0.5), program=(*case.program, Optimize())
    ),
    "model.split": lambda case: with_model(case, split=Split()),
    "model.tied": lambda case: with_model(case, tied=(0, 1)),
    "world.replicas": lambda case: _in(case, structs.replace(_FOUR, replicas=Replicas(others=((2, 3),)))),
    "world.tensor": lambda case: _in(
        case, structs.replace(_FOUR, tensor=TensorParallel(others=((2, 3),), maps="column"))
    ),
}


def _in(case: Case, world: World) -> Case:
    return structs.replace(case, world=world)


@pytest.mark.parametrize("part", BESIDE)
def test_steps_that_freeze_are_not_combined_with_what_keeps_parameters_of_its_own(part: str) -> None:
    assert BESIDE[part](_case(TRAIN)).trains

    with pytest.raises(BadCaseError, match=f"freezes or unfreezes a stage cannot be combined with {part}"):
        BESIDE[part](_case(Freeze(stage=0), TRAIN))
