"""What restarts can be combined with."""

from __future__ import annotations

import pytest
from msgspec import structs

from pipeconform.case.case import Case, Freeze, Restart, Split, Train, World, Zero
from pipeconform.case.mistakes import Mistake
from pipeconform.case.replicas import Replicas
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case, with_model

TRAIN = Train(batch_size=4, num_microbatches=2)
_FOUR = World(size=4, pipeline_ranks=(0, 1))
BESIDE = {
    "steps that freeze stages": lambda case: structs.replace(
        case, program=(Freeze(stage=0), TRAIN, *case.program)
    ),
    "deliberate mistakes": lambda case: structs.replace(
        case,
        program=(
            *case.program,
            structs.replace(TRAIN, mistake=Mistake(where="forward", how="raise", stage=1)),
        ),
    ),
    "model.split": lambda case: with_model(case, split=Split()),
    "world.replicas": lambda case: structs.replace(
        case, world=structs.replace(_FOUR, replicas=Replicas(others=((2, 3),)))
    ),
    "world.tensor": lambda case: structs.replace(
        case, world=structs.replace(_FOUR, tensor=TensorParallel(others=((2, 3),), maps="column"))
    ),
}


def _case(*program: object) -> Case:
    return small_case(program=program)


@pytest.mark.parametrize("part", BESIDE)
def test_restarts_are_not_combined_with_what_a_new_pipeline_is_not_given(part: str) -> None:
    assert BESIDE[part](_case(TRAIN)).trains

    with pytest.raises(
        BadCaseError, match=f"a step that restarts the training cannot be combined with {part}"
    ):
        BESIDE[part](_case(TRAIN, Zero(), Restart(), TRAIN))


def test_a_restart_needs_something_before_it() -> None:
    with pytest.raises(BadCaseError, match=r"program\[0\] restarts a training of which nothing has run"):
        _case(Restart(), TRAIN)
