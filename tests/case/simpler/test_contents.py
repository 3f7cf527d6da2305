"""Every special thing in a case can be taken out of it alone, and what cannot be taken out stays."""

from __future__ import annotations

import pytest
from msgspec import structs

from pipeconform.case.blocks import (
    Activation,
    Attention,
    Checkpointed,
    Decoder,
    Embedding,
    Head,
    Hooked,
    Linear,
    Mlp,
    Norm,
    Unused,
)
from pipeconform.case.by_hand import ByHand
from pipeconform.case.case import (
    Adam,
    Carried,
    Case,
    Clip,
    Eval,
    Freeze,
    Kwarg,
    Load,
    LossSpec,
    Model,
    Optimize,
    Passage,
    Sgd,
    Split,
    Stage,
    Train,
    World,
    Zero,
)
from pipeconform.case.mistakes import Mistake
from pipeconform.case.perturbations import Perturbation
from pipeconform.case.replicas import Replicas
from pipeconform.case.simpler.contents import (
    fewer_blocks,
    fewer_features,
    fewer_steps,
    plainer_values,
    smaller_tensors,
)

STEP = Train(batch_size=4, num_microbatches=2)
LINEAR = Stage(blocks=(Linear(),))


def _case(*stages: tuple, **changes) -> Case:
    model = {"width": 4, "stages": tuple(Stage(blocks=blocks) for blocks in stages) or (LINEAR, LINEAR)}
    model |= changes.pop("model", {})
    p = len(model["stages"])
    world = World(size=p, pipeline_ranks=tuple(range(p)))
    return Case(
        **{"model": Model(**model), "schedule": "GPipe", "world": world, "program": (STEP,), **changes}
    )


def _programs(*steps) -> list[tuple]:
    return [one.program for one in fewer_steps(_case(program=steps, optimizer=Sgd(lr=0.5)))]


# ------------------------------------------------------------------------------------------ steps

TRAIN, OTHER = STEP, Train(batch_size=6, num_microbatches=2)
EVAL, ZERO, OPTIMIZE, LOAD = Eval(batch_size=4, num_microbatches=2), Zero(), Optimize(), Load()


def test_the_shortest_parts_of_a_program_come_first_and_later_ones_before_earlier_ones() -> None:
    assert _programs(TRAIN, OTHER, EVAL) == [
        (EVAL,),
        (OTHER,),
        (TRAIN,),
        (OTHER, EVAL),
        (TRAIN, OTHER),
        (TRAIN, EVAL),
    ]


@pytest.mark.parametrize("idle", [ZERO, OPTIMIZE])
def test_no_part_begins_by_changing_what_nothing_has_made_yet(idle) -> None:
    programs = _programs(TRAIN, idle, OTHER)

    assert all(part[0] in (TRAIN, OTHER) for part in programs)
    assert (OTHER,) in programs


def test_no_part_ends_by_clearing_what_nobody_looks_at_and_the_last_optimizer_step_shows() -> None:
    assert (TRAIN, ZERO) not in _programs(TRAIN, ZERO, OTHER)
    assert (TRAIN, OPTIMIZE) in _programs(TRAIN, OPTIMIZE, OTHER)
    assert (LOAD, TRAIN) in _programs(LOAD, TRAIN, OTHER)


def test_no_part_ends_by_freezing_what_no_step_trains_any_more() -> None:
    freeze = Freeze(stage=0)
    programs = [
        one.program for one in fewer_steps(_case((Linear(),), (Linear(),), program=(TRAIN, freeze, OTHER)))
    ]

    assert (TRAIN, freeze) not in programs
    assert (freeze, OTHER) in programs


def test_a_part_without_optimizer_steps_has_no_optimizer() -> None:
    case = _case(program=(TRAIN, OPTIMIZE, OTHER), optimizer=Sgd(lr=0.5))
    optimizers = {one.program: one.optimizer for one in fewer_steps(case)}

    assert optimizers[(TRAIN, OPTIMIZE)] == Sgd(lr=0.5)
    assert optimizers[(OTHER,)] is None


def test_of_a_long_program_beginnings_and_ends_are_tried() -> None:
    """Every part of twelve steps would be 77 candidates."""
    steps = tuple(Train(batch_size=size, num_microbatches=1) for size in range(1, 13))
    parts = _programs(*steps)

    assert {len(part) for part in parts} == {1, 2, 3, 4, 5, 6, 11}
    assert all(part in (steps[: len(part)], steps[-len(part) :]) for part in parts)
    assert len(parts) == len(set(parts)) == 14


@pytest.mark.parametrize(("length", "number"), [(8, 35 + 6), (9, 2 * 6)])
def test_eight_steps_are_the_most_of_which_every_part_is_tried(length: int, number: int) -> None:
    """35 proper parts of eight steps and six ways to leave out one inside; of nine, 1 to 5 and 8 from both ends."""
    steps = tuple(Train(batch_size=size, num_microbatches=1) for size in range(1, length + 1))

    assert len(_programs(*steps)) == number


# ------------------------------------------------------------------------------------------ features


def _passage(source: int, last: int) -> Passage:
    return Passage(kind="scalar", source=source, last=last, users=(last,))


CARRIED: tuple[Carried, ...] = ("positions", "mask", "scale")
TWO_KWARGS = (Kwarg(stage=0), Kwarg(stage=1))
SLOW = (Perturbation(stage=0, milliseconds=1), Perturbation(stage=1, milliseconds=1))
COUNTED = {"classes": 3, "stages": (LINEAR, Stage(blocks=(Linear(), Head())))}


def _hand(**fields) -> Train:
    return structs.replace(STEP, by_hand=ByHand(**fields))


def _world(**fields) -> World:
    return World(**{"size": 2, "pipeline_ranks": (0, 1), **fields})


def _replicated(**fields) -> Case:
    return _case(world=_world(size=4, replicas=Replicas(others=((2, 3),), **fields)))


REMOVED = {
    "everything beside the main stream": (
        _case(model={"carried": CARRIED, "passages": (_passage(0, 1),), "container": "tuple"}),
        _case(),
    ),
    "the container alone": (_case(model={"container": "list"}), _case()),
    "all that is carried": (_case(model={"carried": CARRIED, "container": "tuple"}), _case()),
    "the first of what is carried": (
        _case(model={"carried": CARRIED, "container": "tuple"}),
        _case(model={"carried": CARRIED[1:], "container": "tuple"}),
    ),
    "the last of what is carried": (
        _case(model={"carried": CARRIED, "container": "tuple"}),
        _case(model={"carried": CARRIED[:-1], "container": "tuple"}),
    ),
    "all passages": (_case(model={"passages": (_passage(0, 1),), "container": "tuple"}), _case()),
    "one keyword argument": (_case(model={"kwargs": TWO_KWARGS}), _case(model={"kwargs": TWO_KWARGS[1:]})),
    "all keyword arguments": (_case(model={"kwargs": TWO_KWARGS}), _case()),
    "the other dtype": (_case(model={"dtype": "float32"}), _case()),
    "the other batch dimension": (
        _case(model={"batch_dim": 1, "sequence": 2}),
        _case(model={"sequence": 2}),
    ),
    "the structured output": (_case(model={"output": "dict"}), _case()),
    "the gradient of the input": (_case(model={"input_requires_grad": True}), _case()),
    "the tie": (_case(model={"tied": (0, 1)}), _case()),
    "the views": (_case(model={"view_outputs": True}), _case()),
    "how a front end splits": (
        _case(model={"split": Split(by="points", after=True)}),
        _case(model={"split": Split(after=True)}),
    ),
    "what a front end must follow": (
        _case(model={"split": Split(by="points", reused=True)}),
        _case(model={"split": Split(by="points")}),
    ),
    "the classes": (_case(model=COUNTED, loss=LossSpec(kind="cross_entropy")), _case()),
    "the sum": (_case(loss=LossSpec(reduction="sum")), _case()),
    "the scale of a loss": (
        _case(loss=LossSpec(reduction="sum", scaled=True)),
        _case(loss=LossSpec(reduction="sum")),
    ),
    "one of two delays": (
        _case(world=_world(perturbations=SLOW)),
        _case(world=_world(perturbations=SLOW[:1])),
    ),
    "an option of the wrapper": (_replicated(static_graph=True), _replicated()),
    "the autocast of all steps": (
        _case(program=(structs.replace(TRAIN, autocast=True), structs.replace(OTHER, autocast=True))),
        _case(program=(TRAIN, OTHER)),
    ),
    "the guard of an evaluation": (
        _case(program=(TRAIN, structs.replace(EVAL, guard="no_grad"))),
        _case(program=(TRAIN, EVAL)),
    ),
    "zeros instead of no gradients": (
        _case(program=(TRAIN, Zero(set_to_none=False), TRAIN)),
        _case(program=(TRAIN, ZERO, TRAIN)),
    ),
    "the step by hand": (_case(program=(_hand(late=True),)), _case()),
    "what is late in a step by hand": (_case(program=(_hand(late=True),)), _case(program=(_hand(),))),
    "what is mixed in a later step by hand": (
        _case(program=(TRAIN, _hand(mixed=True, late=True))),
        _case(program=(TRAIN, _hand(late=True))),
    ),
    "the mistake in a step by hand": (
        _case(program=(_hand(mistake="weight_twice", stage=1),)),
        _case(program=(_hand(stage=1),)),
    ),
    "a hook that is registered early": (
        _case(program=(structs.replace(STEP, mistake=Mistake(where="gradient", how="ndim", early=True)),)),
        _case(program=(structs.replace(STEP, mistake=Mistake(where="gradient", how="ndim")),)),
    ),
    "the momentum": (
        _case(program=(TRAIN, OPTIMIZE), optimizer=Sgd(lr=0.5, momentum=0.25)),
        _case(program=(TRAIN, OPTIMIZE), optimizer=Sgd(lr=0.5)),
    ),
    "the limit of gradients": (
        _case(program=(TRAIN, OPTIMIZE), optimizer=Sgd(lr=0.5, clip=Clip(limit=1.0))),
        _case(program=(TRAIN, OPTIMIZE), optimizer=Sgd(lr=0.5)),
    ),
}


@pytest.mark.parametrize(("special", "plainer"), REMOVED.values(), ids=REMOVED)
def test_a_special_feature_can_be_taken_out_alone(special: Case, plainer: Case) -> None:
    assert plainer in [*fewer_features(special)]


def test_a_plain_case_has_no_feature_to_take_out() -> None:
    assert [*fewer_features(_case(program=(TRAIN, ZERO, OTHER, OPTIMIZE), optimizer=Adam(lr=0.5)))] == []


def test_tokens_go_with_or_without_the_classes() -> None:
    stages = (Stage(blocks=(Embedding(), Mlp())), Stage(blocks=(Norm(), Linear(), Head())))
    case = _case(
        model={"stages": stages, "tokens": True, "classes": 3},
        loss=LossSpec(kind="cross_entropy", reduction="sum", ignore=True),
    )
    without_classes, without_tokens = list(fewer_features(case))[:2]

    assert without_classes == _case((Mlp(),), (Norm(), Linear()), loss=LossSpec(reduction="sum"))
    assert without_tokens == structs.replace(
        case,
        model=structs.replace(case.model, tokens=False, stages=(Stage(blocks=(Mlp(),)), stages[1])),
    )


def test_classes_of_a_model_without_tokens_leave_its_first_block() -> None:
    case = _case(
        (Mlp(), Linear()), (Linear(), Head()), model={"classes": 3}, loss=LossSpec(kind="cross_entropy")
    )

    assert _case((Mlp(), Linear()), (Linear(),)) in list(fewer_features(case))
    assert all(one.model.stages[0] == case.model.stages[0] for one in fewer_features(case))


@pytest.mark.parametrize(
    "case",
    [
        _case(model={"split": Split()}),
        _case(world=_world(perturbations=SLOW[:1])),
        _case(world=_world(placement="v")),
        _replicated(),
    ],
)
def test_the_form_of_a_case_its_placement_and_a_last_delay_are_what_it_is_about(case: Case) -> None:
    assert list(fewer_features(case)) == []


def test_what_stays_while_features_go() -> None:
    """Sizes, mistakes and wrappers are made simpler elsewhere, or are what the case is about."""
    mistaken = structs.replace(STEP, mistake=Mistake(where="forward", how="raise"))
    by_hand = _hand(whole=True, mistake="forward_twice", stage=1, microbatch=1)
    wrapped = _replicated(wrapper="fully_shard", nested=True)

    assert list(fewer_features(_case(program=(mistaken,)))) == []
    hands = [one.program[0].by_hand for one in fewer_features(_case(program=(by_hand,)))]
    assert {(hand.stage, hand.microbatch) for hand in hands if hand is not None} == {(1, 1)}
    kept = [one.world.replicas for one in fewer_features(wrapped) if one.world.replicas is not None]
    assert {one.wrapper for one in kept} == {"fully_shard"}
    assert all(one.runs == wrapped.runs for one in fewer_features(wrapped))


def test_a_setting_of_training_steps_is_left_alone_in_evaluations() -> None:
    case = _case(program=(structs.replace(TRAIN, from_source=True), structs.replace(EVAL, from_source=True)))
    plainer = [one.program for one in fewer_features(case)]

    assert plainer == [(TRAIN, case.program[1]), (case.program[0], EVAL)]


def test_autocast_is_taken_from_all_steps_together() -> None:
    case = _case(program=(structs.replace(TRAIN, autocast=True), structs.replace(EVAL, autocast=True)))

    assert [one.program for one in fewer_features(case)] == [(TRAIN, EVAL)]


# ------------------------------------------------------------------------------------------ blocks


def _stages(case: Case) -> list[tuple[tuple, ...]]:
    """The blocks of every candidate's stages."""
    return [tuple(stage.blocks for stage in one.model.stages) for one in fewer_blocks(case)]


def test_ordinary_blocks_become_one_linear_map_and_special_ones_stay() -> None:
    first, second = (Norm(), Mlp(), Hooked(), Attention()), (Mlp(), Linear(bias=False))
    found = _stages(_case(first, second, model={"sequence": 2}))

    assert found[0] == ((Linear(), Hooked()), (Linear(),))
    assert all(Hooked() in blocks or len(blocks) < len(first) for blocks, _ in found)
    assert found[1] == ((Linear(), Hooked()), second)
    assert found[2] == (first, (Linear(),))


def test_frozen_blocks_are_no_ordinary_ones() -> None:
    found = _stages(_case((Mlp(frozen=True), Norm(frozen=True), Mlp()), (Linear(),)))

    assert found[0] == ((Mlp(frozen=True), Norm(frozen=True), Linear()), (Linear(),))


def test_every_block_but_the_only_one_can_go() -> None:
    blocks = (Linear(), Unused(), Hooked())
    found = _stages(_case(blocks, (Linear(),)))

    for b in range(3):
        assert ((*blocks[:b], *blocks[b + 1 :]), (Linear(),)) in found
    assert all(stages[1] for stages in found)


def test_the_ends_of_a_model_of_tokens_and_classes_stay() -> None:
    stages = (Stage(blocks=(Embedding(), Linear())), Stage(blocks=(Linear(), Head())))
    model = {"stages": stages, "tokens": True, "classes": 3}
    found = _stages(_case(model=model, loss=LossSpec(kind="cross_entropy")))

    assert ((Embedding(),), stages[1].blocks) in found
    assert (stages[0].blocks, (Head(),)) in found
    assert all((first[0], last[-1]) == (Embedding(), Head()) for first, last in found)


PLAINER = {
    "an mlp becomes a map": (Mlp(), Linear()),
    "a decoder becomes a map": (Decoder(kv_heads=2), Linear()),
    "a decoder becomes a plain one": (Decoder(kv_heads=2), Decoder()),
    "a map gets its bias": (Linear(bias=False), Linear()),
    "a frozen mlp becomes a frozen map": (Mlp(frozen=True), Linear(frozen=True)),
    "a frozen block is trained": (Hooked(frozen=True), Hooked()),
    "a special block becomes the usual one": (Activation(kind="relu"), Activation()),
    "checkpoints without dropout": (Checkpointed(dropout=True, reentrant=True), Checkpointed(reentrant=True)),
}


@pytest.mark.parametrize(("special", "plainer"), PLAINER.values(), ids=PLAINER)
def test_a_block_becomes_a_plainer_one(special, plainer) -> None:
    found = _stages(_case((Linear(), special), (Linear(),), model={"sequence": 2}))

    assert ((Linear(), plainer), (Linear(),)) in found


def test_plain_stages_have_nothing_to_lose() -> None:
    assert len(list(fewer_blocks(_case()))) <= 1
    assert set(fewer_blocks(_case())) <= {_case()}
    assert [*fewer_blocks(_case((Linear(frozen=True),), (Linear(),)))][1:] == [_case()]


def test_a_frozen_stage_is_trained() -> None:
    frozen = Stage(blocks=(Linear(),), frozen=True)
    case = _case(model={"stages": (frozen, LINEAR, frozen)})
    found = [tuple(stage.frozen for stage in one.model.stages) for one in fewer_blocks(case)]

    assert (False, False, True) in found
    assert (True, False, False) in found
    assert (True, False, True) in found[:1]


# ------------------------------------------------------------------------------------------ tensors and values


def test_tensors_become_smaller_in_both_ways_at_once_and_then_in_one() -> None:
    case = _case(model={"width": 4, "sequence": 2})
    found = [(one.model.sequence, one.model.width) for one in smaller_tensors(case)]

    assert found == [(0, 1), (0, 4), (1, 4), (2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(
    ("width", "sequence", "found"),
    [(1, 0, []), (2, 0, [(0, 1)]), (1, 1, [(0, 1)]), (9, 0, [(0, width) for width in (1, 2, 3, 4, 6, 8)])],
)
def test_the_smallest_tensors_have_one_value_and_no_sequence(width, sequence, found) -> None:
    case = _case(model={"width": width, "sequence": sequence})

    assert [(one.model.sequence, one.model.width) for one in smaller_tensors(case)] == found


def test_the_plainest_seed_is_zero() -> None:
    assert list(plainer_values(_case(seed=9))) == [_case()]
    assert list(plainer_values(_case())) == []
