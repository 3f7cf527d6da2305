"""Plans that are wrong, as data, and what each rank is told."""

from typing import get_args

import pytest
from msgspec import structs

from pipeconform.adapter import MistakeKind
from pipeconform.case import blocks
from pipeconform.case.build.declared import declared_of
from pipeconform.case.case import Case, Eval, Model, Stage, Train, World, Zero, decode_case, encode_case
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.case.misplans import TABLES, HowPlanned, Misplan, num_surplus
from pipeconform.case.orders import Order
from pipeconform.case.planned import planned_for, right_cases
from pipeconform.errors import BadCaseError

EVERY = [
    Misplan(how="remainder"),
    Misplan(how="single"),
    Misplan(how="schedule"),
    Misplan(how="schedule", rank=1),
    Misplan(how="stages", rank=1),
    Misplan(how="microbatches", rank=0, number=3),
    Misplan(how="metadata", rank=1),
    Misplan(how="shape", stage=0),
    Misplan(how="dtype", stage=0),
]
WRONG_TABLES = [
    Misplan(how="no forward", stage=1, number=1),
    Misplan(how="no backward", stage=1),
    Misplan(how="forward twice", number=1),
    Misplan(how="backward twice", stage=1, number=1),
    Misplan(how="backward first", number=1),
    Misplan(how="no computation", stage=1),
    Misplan(how="other microbatch"),
    Misplan(how="circle"),
    Misplan(how="no line"),
    Misplan(how="lines exchanged"),
]


def _case(misplan: Misplan, *, num_stages: int | None = None) -> Case:
    order = Order(seed=0) if misplan.how in TABLES else None
    count = 2 + num_surplus(misplan, num_ranks=2) if num_stages is None else num_stages
    return Case(
        model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)),) * count),
        schedule="GPipe",
        world=World(size=3, pipeline_ranks=(0, 2), misplan=misplan, order=order),
        program=(Train(batch_size=6, num_microbatches=2),),
    )


def test_every_way_to_be_wrong_is_here_and_in_words_of_its_own() -> None:
    every = [*EVERY, *WRONG_TABLES]
    assert {one.how for one in every} == set(get_args(HowPlanned))
    assert {one.kind for one in EVERY} == {MistakeKind.PLAN, MistakeKind.NEIGHBOURS}
    assert {one.kind for one in WRONG_TABLES} == {MistakeKind.TABLE}
    assert len({one.in_words() for one in every}) == len(every)


ABOUT = {
    MistakeKind.PLAN: Focus.MISPLANNED,
    MistakeKind.NEIGHBOURS: Focus.NEIGHBOURS,
    MistakeKind.TABLE: Focus.WRONG_TABLE,
}


@pytest.mark.parametrize("misplan", [*EVERY, *WRONG_TABLES], ids=repr)
def test_a_case_with_a_wrong_plan_is_data_and_has_a_right_one(misplan: Misplan) -> None:
    case = _case(misplan)
    about = ABOUT[misplan.kind]

    assert decode_case(encode_case(case)) == case
    assert traits(case) == {about}
    assert case.is_mistaken
    assert not case.without_mistakes.is_mistaken
    assert case.without_mistakes.num_stages == 2
    assert traits(case.without_mistakes) == {Focus.ORDERS if misplan.how in TABLES else Focus.PLAIN}


@pytest.mark.parametrize(
    ("misplan", "told"),
    [
        (Misplan(how="single"), [(4, 2, 2), (4, 2, 2), (4, 2, 2)]),
        (Misplan(how="stages", rank=1), [(2, 1, 2), (4, 2, 2), (2, 1, 2)]),
        (Misplan(how="microbatches", rank=0, number=3), [(2, 1, 3), (2, 1, 2), (2, 1, 2)]),
        (Misplan(how="remainder"), [(3, 1, 2), (3, 1, 2), (3, 1, 2)]),
        (Misplan(how="schedule", rank=1), [(2, 1, 2), (2, 1, 2), (2, 1, 2)]),
    ],
)
def test_each_rank_is_told_its_own(misplan: Misplan, told: list[tuple[int, int, int]]) -> None:
    seen = [planned_for(_case(misplan), position) for position in (0, 1, None)]

    assert [(one.num_stages, one.stages_per_rank, one.trains[0].num_microbatches) for one in seen] == told
    unable = misplan.how in ("remainder", "schedule")
    assert [one.is_mistaken for one in seen] == [
        unable and misplan.rank in (None, position) for position in (0, 1, None)
    ]


def test_right_is_what_any_rank_was_told() -> None:
    numbers = [
        [(one.num_stages, one.trains[0].num_microbatches) for one in right_cases(_case(misplan))]
        for misplan in EVERY
    ]

    assert numbers == [
        [(3, 2)],
        [(4, 2)],
        [(2, 2)],
        [(2, 2)],
        [(2, 2), (4, 2)],
        [(2, 2), (2, 3)],
        [(2, 2)],
        [(2, 2)],
        [(2, 2)],
    ]


@pytest.mark.parametrize("how", ["shape", "dtype"])
def test_neighbours_say_different_things_about_one_boundary_only(how: HowPlanned) -> None:
    case = structs.replace(
        _case(Misplan(how="stages", rank=0)),
        world=World(size=2, pipeline_ranks=(0, 1), misplan=Misplan(how=how, stage=1)),
        stages_per_rank=2,
    )
    said = declared_of(case)
    differ = [s for s in range(3) if said[s].outputs != said[s + 1].inputs]

    assert differ == [1]
    assert said[1].outputs[0].shape == (3, 3)
    assert (said[1].outputs[0].shape != said[2].inputs[0].shape) == (how == "shape")
    assert (said[1].outputs[0].dtype != said[2].inputs[0].dtype) == (how == "dtype")


@pytest.mark.parametrize(
    ("misplan", "words"),
    [
        (Misplan(how="stages"), "changes one rank's plan"),
        (Misplan(how="remainder", rank=0), "changes every rank's plan"),
        (Misplan(how="metadata", rank=2), "rank 2 is outside 0…1"),
        (Misplan(how="shape", stage=1), "stage 1 has no stage after it"),
        (Misplan(how="microbatches", rank=0), "number 0 must be above 0"),
        (Misplan(how="schedule", number=2), "number 2 must be above 0"),
        (Misplan(how="no forward", number=2), "number 2 is outside 0…1 with how 'no forward'"),
    ],
)
def test_what_cannot_be_wrong_like_that_is_refused(misplan: Misplan, words: str) -> None:
    with pytest.raises(BadCaseError, match=words):
        _case(misplan)


@pytest.mark.parametrize("misplan", WRONG_TABLES, ids=repr)
def test_every_rank_is_given_the_same_wrong_table(misplan: Misplan) -> None:
    case = _case(misplan)

    assert [planned_for(case, position) for position in (0, 1, None)] == [case] * 3
    assert right_cases(case) == (case.without_mistakes,)


def test_a_table_that_is_wrong_must_be_there() -> None:
    world = World(size=3, pipeline_ranks=(0, 2), misplan=Misplan(how="circle"))
    with pytest.raises(BadCaseError, match=r"changes a table, but world\.order is None"):
        structs.replace(_case(Misplan(how="schedule")), world=world)


def test_surplus_stages_are_counted() -> None:
    with pytest.raises(BadCaseError, match="need 3"):
        _case(Misplan(how="remainder"), num_stages=2)


def test_a_case_with_a_right_plan_is_told_to_every_rank_as_it_is() -> None:
    case = _case(Misplan(how="schedule")).without_mistakes

    assert [planned_for(case, position) for position in (0, 1, None)] == [case] * 3
    assert right_cases(case) == (case,)


def test_only_what_runs_gets_another_number_of_microbatches() -> None:
    right = Train(batch_size=6, num_microbatches=2)
    program = (right, Zero(), Eval(batch_size=6, num_microbatches=2))
    case = structs.replace(_case(Misplan(how="microbatches", rank=0, number=3)), program=program)
    told = planned_for(case, 0).program

    assert [getattr(step, "num_microbatches", None) for step in told] == [3, None, 3]
