"""Mistakes as data, and making them."""

import pytest
import torch
from msgspec import structs

from pipeconform.adapter import MistakeKind
from pipeconform.case import blocks
from pipeconform.case.build import data
from pipeconform.case.build.mistakes import DeliberateError, MistakeMaker, changed, mistaken_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero, decode_case, encode_case
from pipeconform.case.draw.registry import MISTAKEN
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import _ALLOWED, Mistake
from pipeconform.case.replicas import Replicas
from pipeconform.errors import BadCaseError

EVERY = [
    Mistake(where=where, how=how, microbatch=1 if where == "source" else None)
    for where, hows in _ALLOWED.items()
    for how in hows
]


def _case(
    mistake: Mistake | None,
    *,
    num_stages: int = 2,
    hooked: bool = False,
    carries: bool = False,
    from_source: bool = False,
) -> Case:
    right = Train(batch_size=4, num_microbatches=2, from_source=from_source)
    ranks = tuple(range(num_stages))
    replicas = Replicas(others=(tuple(rank + num_stages for rank in ranks),), hook=True) if hooked else None
    return Case(
        model=Model(
            width=3,
            stages=(Stage(blocks=(blocks.Linear(),)),) * num_stages,
            carried=("stream",) if carries else (),
            container="list" if carries else "tensor",
        ),
        schedule="GPipe",
        world=World(size=num_stages * (1 + hooked), pipeline_ranks=ranks, replicas=replicas),
        program=(right, Zero(), structs.replace(right, mistake=mistake)),
    )


@pytest.mark.parametrize("mistake", EVERY, ids=str)
def test_a_mistake_is_a_subject_of_its_own_and_survives_its_json(mistake):
    hooked, carries = mistake.where == "reduction", mistake.how == "ragged"
    ends = mistake.where == "source"
    case = _case(mistake, hooked=hooked, carries=carries, from_source=ends)
    right = Focus.REPLICA_OPTIONS if hooked else Focus.BOUNDARY if carries else Focus.PLAIN
    right = Focus.SOURCES if ends else right

    assert traits(case) <= MISTAKEN
    assert decode_case(encode_case(case)) == case
    assert case.is_mistaken
    assert not case.without_mistakes.is_mistaken
    assert traits(case.without_mistakes) == {right}
    assert mistake.in_words()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (Mistake(where="loss", how="inner"), "does not apply to 'loss'"),
        (Mistake(where="output", how="inner", stage=2), "stage 2 is outside"),
        (Mistake(where="output", how="inner", microbatch=2), "microbatch 2 is outside"),
        (Mistake(where="input", how="inner", microbatch=0), "changes the whole batch"),
        (Mistake(where="source", how="ends"), "needs the number of the first microbatch that is missing"),
        (Mistake(where="source", how="ends", microbatch=1), r"needs program\[2\].from_source"),
        (Mistake(where="reduction", how="raise"), "needs world.replicas.hook"),
    ],
)
def test_a_mistake_that_cannot_be_made_is_no_case(mistake, words):
    with pytest.raises(BadCaseError, match=words):
        _case(mistake)


@pytest.mark.parametrize(
    ("how", "shape", "dtype"),
    [
        ("inner", [4, 2, 4], torch.float32),
        ("ndim", [4, 2, 1, 3], torch.float32),
        ("flattened", [4, 6], torch.float32),
        ("batch", [5, 2, 3], torch.float32),
        ("down", [4, 2, 3], torch.bfloat16),
        ("up", [4, 2, 3], torch.float64),
        ("integer", [4, 2, 3], torch.int64),
        ("complex", [4, 2, 3], torch.complex64),
    ],
)
def test_what_stands_in_the_place_of_a_tensor(how, shape, dtype):
    found = changed(torch.randn(4, 2, 3), how)

    assert (list(found.shape), found.dtype) == (shape, dtype)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float64, torch.complex128),
        (torch.float32, torch.complex64),
        (torch.bfloat16, torch.complex64),
    ],
)
def test_a_complex_tensor_is_no_wider_than_what_a_device_has(dtype, expected):
    """Its parts are as wide as the tensor, or float32: not every device has float64."""
    given = torch.randn(2, 3).to(dtype)
    found = changed(given, "complex")
    assert found.dtype == expected
    assert torch.equal(found.real.to(dtype), given)
    assert not found.imag.any()


def test_the_input_or_the_number_of_samples_is_wrong_on_every_rank_alike():
    batch = data.make_batch(_case(None), 0)

    assert mistaken_batch(batch, Mistake(where="input", how="inner")).args[0].shape == (4, 4)
    assert mistaken_batch(batch, Mistake(where="input", how="fewer")).args == ()
    assert len(mistaken_batch(batch, Mistake(where="input", how="more")).args) == 2
    assert mistaken_batch(batch, Mistake(where="batch", how="targets")).target.shape == (3, 3)
    scarce = mistaken_batch(batch, Mistake(where="batch", how="scarce"))
    assert [len(micro.args[0]) for micro in scarce.microbatches] == [1, 0]


def test_a_ragged_batch_has_one_sample_more_in_its_second_argument():
    batch = data.make_batch(_case(None, carries=True), 0)
    ragged = mistaken_batch(batch, Mistake(where="batch", how="ragged"))

    assert [len(arg) for arg in ragged.args] == [4, 5]
    with pytest.raises(BadCaseError, match="needs model"):
        _case(Mistake(where="batch", how="ragged"))


@pytest.mark.parametrize("early", [False, True])
def test_a_hook_changes_one_microbatch_of_one_step(early):
    case = _case(Mistake(where="output", how="inner", stage=1, microbatch=1, early=early))
    mistakes, module = MistakeMaker(case), build_stage(case, 1)
    mistakes.attach(1, module)
    shapes = []
    for step in case.program:
        with mistakes.during(step, {1: module}):
            shapes += [module(torch.zeros(2, 3, dtype=torch.float64)).shape[-1] for _ in range(2)]

    assert shapes == [3, 3, 3, 3, 3, 4]


def test_a_hook_that_came_for_a_step_goes_with_it():
    case = _case(Mistake(where="output", how="inner", stage=1))
    module = build_stage(case, 1)
    before = len(module._forward_hooks)
    with MistakeMaker(case).during(case.program[-1], {1: module}):
        assert len(module._forward_hooks) == before + 1

    assert len(module._forward_hooks) == before


@pytest.mark.parametrize("where", ["forward", "backward", "loss"])
def test_the_model_raises_where_it_is_to(where):
    case = _case(Mistake(where=where, how="raise", stage=0, microbatch=1))
    mistakes, module = MistakeMaker(case), build_stage(case, 0)
    loss = mistakes.loss(lambda output, target: output.sum())

    def step() -> None:
        for _ in range(2):
            loss(module(torch.zeros(2, 3, dtype=torch.float64)), None).backward()

    with mistakes.during(case.program[0], {0: module}):
        step()
    with mistakes.during(case.program[-1], {0: module}), pytest.raises(DeliberateError):
        step()


def test_every_kind_of_mistake_about_a_step_can_be_made():
    about_plans = {MistakeKind.PLAN, MistakeKind.NEIGHBOURS, MistakeKind.TABLE}

    assert {mistake.kind for mistake in EVERY} == set(MistakeKind) - about_plans
