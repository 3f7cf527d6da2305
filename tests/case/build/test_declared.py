"""What the user declares of a case's stages."""

import pytest
import torch
from msgspec import structs

from pipeconform.case.blocks import Linear
from pipeconform.case.build.declared import declared_of
from pipeconform.case.case import Eval, Model, Stage, Train, World, Zero
from pipeconform.case.misplans import Misplan
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case

TRAIN = Train(batch_size=6, num_microbatches=3)
STAGES = tuple(Stage(blocks=(Linear(),), frozen=frozen) for frozen in (True, False, False))


def _world(**fields):
    return World(size=3, pipeline_ranks=(0, 1, 2), **fields)


MODEL = Model(stages=STAGES, width=4, carried=("positions",), container="tuple")


def _case(declared):
    return small_case(model=MODEL, world=_world(declared=declared), program=(TRAIN, Zero(), TRAIN))


def _needs(declared):
    return {s: [one.requires_grad for one in (*said.inputs, *said.outputs)] for s, said in declared.items()}


def test_an_exact_declaration_says_which_tensors_need_a_gradient_and_examples_need_none():
    exact, examples = declared_of(_case("exact")), declared_of(_case("examples"))

    # the first stage is frozen, and positions are integers; only what the second hands on needs a gradient
    assert _needs(exact) == {
        0: [False, False, False, False],
        1: [False, False, True, False],
        2: [True, False, True],
    }
    assert not any(any(needs) for needs in _needs(examples).values())


def test_both_say_shapes_and_dtypes_of_one_microbatch():
    for declared in ("exact", "examples"):
        said = declared_of(_case(declared))
        assert [(one.shape, one.dtype) for one in said[1].inputs] == [
            ((2, 4), torch.float64),
            ((2,), torch.int64),
        ]
        assert [one.inputs[0].shape for one in said.values()] == [(2, 4)] * 3
        assert _shapes(said[0].outputs) == _shapes(said[1].inputs)


def _shapes(specs):
    return [(one.shape, one.dtype, one.batch_dim) for one in specs]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ((TRAIN, Eval(batch_size=4, num_microbatches=2)), "one shape for all microbatches"),
        ((Train(batch_size=7, num_microbatches=3),), "one shape for all microbatches"),
    ],
    ids=["other microbatches", "uneven ones"],
)
def test_what_is_declared_must_hold_for_all_microbatches(program, words):
    with pytest.raises(BadCaseError, match=words):
        structs.replace(_case("exact"), program=program)


def test_stages_that_are_wrong_on_purpose_are_declared_by_their_mistake():
    case = _case("")
    world = structs.replace(case.world, misplan=Misplan(how="dtype", stage=0))
    assert declared_of(structs.replace(case, world=world))[1].inputs[0].dtype is torch.float32

    with pytest.raises(BadCaseError, match=r"needs stages that are given one by one.*without world.misplan"):
        structs.replace(case, world=structs.replace(world, declared="exact"))
