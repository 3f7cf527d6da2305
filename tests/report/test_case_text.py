"""A case in words: nothing that makes it another case may be left out."""

import msgspec
import pytest

from pipeconform.case import blocks
from pipeconform.case.by_hand import UNTIMELY, has_neighbour
from pipeconform.case.case import (
    Adam,
    ByHand,
    Case,
    Eval,
    Freeze,
    Kwarg,
    Load,
    LossSpec,
    Model,
    Optimize,
    Passage,
    Restart,
    Sgd,
    Split,
    Stage,
    Train,
    World,
    Zero,
)
from pipeconform.case.orders import Order
from pipeconform.report.case_text import describe_case, describe_program
from tests.case.examples import small_case, with_model

TRAIN, EVAL, ZERO, STEP = (
    Train(batch_size=4, num_microbatches=2),
    Eval(batch_size=4, num_microbatches=2),
    Zero(),
    Optimize(),
)
MODEL = Model(width=2, sequence=3, stages=(Stage(blocks=(blocks.Linear(), blocks.Norm())),) * 2)
CASE = Case(
    model=MODEL, schedule="GPipe", world=World(size=2, pipeline_ranks=(0, 1)), program=(TRAIN, ZERO, TRAIN)
)

OTHER = {
    "model.width": 3,
    "model.sequence": 4,
    "model.batch_dim": 1,
    "model.dtype": "float32",
    "model.container": "list",
    "model.output": "tuple1",
    "model.merged": ("turned", "total"),
    "model.kwargs": (Kwarg(stage=1),),
    "model.input_requires_grad": True,
    "model.view_outputs": True,
    "model.readout": True,
    "model.split": Split(),
    "model.tied": (0, 1),
    "schedule": "1F1B",
    "world": World(size=3, pipeline_ranks=(0, 1)),
    "program": (TRAIN, EVAL),
    "optimizer": Sgd(lr=0.5),
    "seed": 7,
    "loss.reduction": "sum",
    "loss.scaled": True,
    "loss.in_place": True,
    "loss.fixed": True,
}
TOGETHER = {
    "model.carried": (
        {"model.container": "tuple", "model.carried": ("scale",)},
        {"model.container": "tuple"},
    ),
    "model.passages": (
        {"model.container": "tuple", "model.passages": (Passage(kind="learned", source=0, last=1),)},
        {"model.container": "tuple"},
    ),
    "model.classes": ({"model.classes": 3, "loss.kind": "cross_entropy"}, {}),
    "model.stages": (
        {"model.stages": (Stage(blocks=(blocks.Linear(),), frozen=True), MODEL.stages[1])},
        {"model.stages": (Stage(blocks=(blocks.Linear(),)), MODEL.stages[1])},
    ),
    "loss.kind": ({"model.classes": 3, "loss.kind": "cross_entropy"}, {}),
    "loss.ignore": (
        {"model.classes": 3, "loss.kind": "cross_entropy", "loss.ignore": True},
        {"model.classes": 3, "loss.kind": "cross_entropy"},
    ),
    "loss.counted": (
        {
            "model.classes": 3,
            "loss.kind": "cross_entropy",
            "loss.reduction": "sum",
            "loss.counted": True,
        },
        {"model.classes": 3, "loss.kind": "cross_entropy", "loss.reduction": "sum"},
    ),
    "stages_per_rank": (
        {"world": World(size=1, pipeline_ranks=(0,)), "stages_per_rank": 2},
        {},
    ),
}


def changed(changes):
    """CASE with some fields, named by their paths, replaced."""
    parts = {"model": {}, "loss": {}, "": {}}
    for path, value in changes.items():
        part, _, name = path.rpartition(".")
        parts[part][name] = value
    return msgspec.structs.replace(
        CASE,
        model=msgspec.structs.replace(MODEL, **parts["model"]),
        loss=msgspec.structs.replace(CASE.loss, **parts["loss"]),
        **parts[""],
    )


def test_a_plain_case_is_a_few_aligned_lines():
    assert describe_case(CASE).splitlines() == [
        "pipeline  GPipe, p = 2, v = 1",
        "stage 0   Linear → Norm",
        "stage 1   Linear → Norm",
        "model     width 2, sequence 3, float64",
        "loss      mean mse",
        "program   train(B = 4, m = 2), zero_grad, train(B = 4, m = 2)",
        "seed      0",
    ]


@pytest.mark.parametrize("field", OTHER)
def test_every_field_shows(field):
    assert describe_case(changed({field: OTHER[field]})) != describe_case(CASE)


@pytest.mark.parametrize("field", TOGETHER)
def test_every_field_that_needs_others_shows(field):
    changes, base = TOGETHER[field]

    assert describe_case(changed(changes)) != describe_case(changed(base))


def test_no_field_is_forgotten():
    fields = {
        *(f"model.{name}" for name in Model.__struct_fields__),
        *(f"loss.{name}" for name in LossSpec.__struct_fields__),
        *Case.__struct_fields__,
    } - {"model", "loss", "format"}

    assert fields == OTHER.keys() | TOGETHER.keys() | {"model.tokens"}


PLACED = msgspec.structs.replace(CASE.world, placement="v")
HANDS = [
    ByHand(),
    ByHand(mixed=True),
    ByHand(late=True),
    ByHand(mistake="weight_first"),
    ByHand(mistake="weight_twice"),
    ByHand(mistake="weight_unknown"),
    ByHand(mistake="weight_unknown", stage=1),
    ByHand(mistake="weight_unknown", microbatch=1),
    ByHand(whole=True),
    *(ByHand(whole=True, mistake=one) for one in UNTIMELY if has_neighbour(one, stage=0, placed=(0, 1))),
]


def test_another_placement_shows():
    assert "placed as a v" in describe_case(msgspec.structs.replace(CASE, world=PLACED))


def test_every_step_by_hand_has_words_of_its_own():
    texts = [describe_program([msgspec.structs.replace(TRAIN, by_hand=hand)]) for hand in HANDS]

    assert texts[1] == "train(B = 4, m = 2, by hand (every second backward whole))"
    assert len({describe_program([TRAIN]), *texts}) == 1 + len(HANDS)


def test_token_inputs_show():
    stages = (Stage(blocks=(blocks.Embedding(),)), Stage(blocks=(blocks.Head(),)))
    case = changed(
        {"model.stages": stages, "model.tokens": True, "model.classes": 3, "loss.kind": "cross_entropy"}
    )

    assert "token inputs; 3 classes" in describe_case(case)


def test_ranks_are_named_where_they_are_not_the_whole_world_in_order():
    world = World(size=4, pipeline_ranks=(1, 3))

    assert describe_case(changed({"world": world})).startswith(
        "pipeline  GPipe, p = 2 (ranks 1, 3 of a world of 4)"
    )


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ((TRAIN,), "train(B = 4, m = 2)"),
        ((TRAIN, TRAIN), "train(B = 4, m = 2), train(B = 4, m = 2)"),
        ((TRAIN, TRAIN, TRAIN, EVAL), "3 × (train(B = 4, m = 2)), eval(B = 4, m = 2)"),
        (
            ((TRAIN, STEP, ZERO) * 20)[:-1],
            "19 × (train(B = 4, m = 2), optimizer step, zero_grad), train(B = 4, m = 2), optimizer step",
        ),
        ((TRAIN, Zero(set_to_none=False)), "train(B = 4, m = 2), zero_grad(set_to_none=False)"),
    ],
)
def test_what_repeats_in_a_program_is_written_once(program, expected):
    assert describe_program(program) == expected


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [(Sgd(lr=0.125, momentum=0.5), "Sgd, lr 0.125, momentum 0.5"), (Adam(lr=0.25), "Adam, lr 0.25")],
)
def test_the_optimizer_shows_its_settings(optimizer, expected):
    assert f"optimizer  {expected}\n" in describe_case(changed({"optimizer": optimizer}))


def test_passages_guards_autocast_and_loading_are_said() -> None:
    passages = (
        Passage(kind="scalar", source=0, last=1, users=(1,)),
        Passage(kind="stream", source=0, last=1),
    )
    case = with_model(small_case(), passages=passages, container="tuple")
    program = (
        Freeze(stage=1),
        Freeze(stage=1, frozen=False),
        Load(),
        Train(batch_size=4, num_microbatches=2, autocast=True),
        Eval(batch_size=2, num_microbatches=1, autocast=True, guard="inference_mode"),
    )

    text = describe_case(msgspec.structs.replace(case, program=program))

    assert "passes a scalar tensor from stage 0 to 1, used by 1" in text
    assert "passes a stream tensor from stage 0 to 1, used by none" in text
    assert "freeze stage 1, unfreeze stage 1, load state, train(B = 4, m = 2, autocast), eval(" in text
    assert "eval(B = 2, m = 1, autocast, inference_mode)" in text


def test_a_restart_says_what_happens() -> None:
    run = Train(batch_size=4, num_microbatches=2)

    assert "m = 2), save, build anew, restore, train(" in describe_case(
        small_case(program=(run, Restart(), run))
    )


def test_an_order_of_the_users_own_shows_as_the_table_that_ranks_get():
    world = World(size=2, pipeline_ranks=(0, 1), order=Order(seed=1, in_turn=False))

    lines = describe_case(msgspec.structs.replace(small_case(program=(TRAIN,)), world=world)).splitlines()

    at = next(n for n, line in enumerate(lines) if line.startswith("order "))
    assert [line.removeprefix("order").strip() for line in lines[at : at + 2]] == [
        "pipeline rank 0: 0F1 0F0 0B1 0B0",
        "pipeline rank 1: 1F1 1F0 1B1 1B0",
    ]


def test_a_schedule_that_is_written_and_read_again_shows():
    world = World(size=2, pipeline_ranks=(0, 1), rewritten=True)

    text = describe_case(msgspec.structs.replace(small_case(program=(TRAIN,)), world=world))

    assert "schedule  written to a file and read again" in text


def test_receives_that_are_posted_late_show():
    world = World(size=2, pipeline_ranks=(0, 1), late_receives=True)

    text = describe_case(msgspec.structs.replace(small_case(program=(TRAIN,)), world=world))

    assert "receives  posted as late as possible" in text


def test_stages_that_the_engine_computes_again_show():
    world = World(size=2, pipeline_ranks=(0, 1), recompute=True)

    text = describe_case(msgspec.structs.replace(small_case(program=(TRAIN,)), world=world))

    assert "activations  not kept by the engine, which computes stages again in the backward" in text


def test_a_stage_without_blocks_says_what_it_returns():
    model = msgspec.structs.replace(MODEL, stages=(MODEL.stages[0], Stage(blocks=())))

    assert "stage 1   hands on what it is given" in describe_case(small_case(model=model, program=(TRAIN,)))


def test_a_second_schedule_shows():
    world = World(size=2, pipeline_ranks=(0, 1), second_schedule=True)

    text = describe_case(msgspec.structs.replace(small_case(program=(TRAIN,)), world=world))

    assert "evaluation  by a second schedule around the same stages, without a loss" in text


@pytest.mark.parametrize(
    ("declared", "words"),
    [("exact", "shapes, dtypes and needs of gradients"), ("examples", "shapes and dtypes")],
)
def test_what_is_declared_shows(declared, words):
    world = World(size=2, pipeline_ranks=(0, 1), declared=declared)

    text = describe_case(msgspec.structs.replace(small_case(program=(TRAIN,)), world=world))

    assert f"declared  the boundaries' {words}\n" in text
