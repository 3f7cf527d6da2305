"""What is said of a stage or microbatch that is gone is said of one that is left."""

from __future__ import annotations

import pytest
from msgspec import structs

from pipeconform.case.blocks import Head, Hooked, Linear, Mlp, Norm
from pipeconform.case.by_hand import ByHand
from pipeconform.case.case import (
    Case,
    Eval,
    Freeze,
    Kwarg,
    LossSpec,
    Model,
    Passage,
    Stage,
    Train,
    World,
    Zero,
)
from pipeconform.case.misplans import Misplan
from pipeconform.case.mistakes import Mistake
from pipeconform.case.perturbations import Perturbation, SlowLink
from pipeconform.case.replicas import Replicas
from pipeconform.case.simpler.sizes import (
    fewer_microbatches,
    fewer_processes,
    fewer_samples,
    fewer_stages,
    without_bystanders,
)
from pipeconform.case.tensor_parallel import TensorParallel

PLAIN = Stage(blocks=(Linear(),))
STEP = Train(batch_size=8, num_microbatches=4)


def _case(num_stages: int = 4, **changes) -> Case:
    model = changes.pop("model", {})
    fields = {
        "model": Model(**{"width": 3, "stages": (PLAIN,) * num_stages, **model}),
        "schedule": "1F1B",
        "world": World(size=num_stages, pipeline_ranks=tuple(range(num_stages))),
        "program": (STEP,),
    }
    return Case(**{**fields, **changes})


def _of_ranks(case: Case, p: int) -> Case:
    """The candidate on `p` ranks with all microbatches."""
    m = case.runs[0].num_microbatches
    found = [one for one in fewer_stages(case) if one.num_ranks == p]
    return next(one for one in found if one.runs[0].num_microbatches == m)


def test_special_stages_are_kept() -> None:
    special = Stage(blocks=(Linear(), Hooked()))
    case = _case(model={"stages": (PLAIN, PLAIN, special, PLAIN), "kwargs": (Kwarg(stage=1),)})
    small = _of_ranks(case, 2)

    assert small.model.stages == (PLAIN, special)
    assert small.model.kwargs == (Kwarg(stage=0),)


def test_stages_that_are_frozen_in_a_step_are_kept() -> None:
    program = (STEP, Zero(), Freeze(stage=2), STEP, Zero(), Freeze(stage=2, frozen=False), STEP)
    small = _of_ranks(
        _case(model={"stages": (PLAIN, PLAIN, Stage(blocks=(Mlp(),)), PLAIN)}, program=program), 2
    )

    assert small.model.stages == (PLAIN, Stage(blocks=(Mlp(),)))
    assert [step for step in small.program if isinstance(step, Freeze)] == [
        Freeze(stage=1),
        Freeze(stage=1, frozen=False),
    ]


def test_passages_go_between_the_stages_that_are_left() -> None:
    one = Passage(kind="stream", source=0, last=3, users=(1, 2, 3))
    small = _of_ranks(_case(model={"passages": (one,), "container": "tuple"}), 3)

    assert small.model.passages == (Passage(kind="stream", source=0, last=2, users=(1, 2)),)


def test_mistakes_and_misfortunes_stay_inside() -> None:
    step = Train(
        batch_size=8,
        num_microbatches=4,
        mistake=Mistake(where="forward", how="raise", stage=3, microbatch=3),
    )
    late = (Perturbation(stage=3, milliseconds=2, microbatch=3), SlowLink(rank=3, milliseconds=2))
    world = World(size=4, pipeline_ranks=(0, 1, 2, 3), perturbations=late)
    case = _case(program=(STEP, step), world=world)
    small = next(one for one in fewer_stages(case) if (one.num_ranks, one.runs[0].num_microbatches) == (2, 2))

    assert small.mistakes == (Mistake(where="forward", how="raise", stage=1, microbatch=1),)
    assert small.world.perturbations == (
        Perturbation(stage=1, milliseconds=2, microbatch=1),
        SlowLink(rank=1, milliseconds=2),
    )


def test_a_plan_with_a_stage_too_many_keeps_it() -> None:
    world = World(size=3, pipeline_ranks=(0, 1, 2), misplan=Misplan(how="remainder"))
    small = _of_ranks(_case(4, world=world), 2)

    assert (small.num_ranks, small.num_stages) == (2, 3)


def test_every_pipeline_of_the_world_gets_shorter() -> None:
    tensor = TensorParallel(others=((1, 3, 5),), maps="column")
    world = World(size=6, pipeline_ranks=(0, 2, 4), tensor=tensor)
    small = _of_ranks(_case(3, world=world), 2)

    assert small.world.size == 4
    assert small.world.pipelines == ((0, 2), (1, 3))


def test_sizes_that_were_equal_stay_equal() -> None:
    case = _case(program=(STEP, Train(batch_size=2, num_microbatches=1), STEP))
    for one in (*fewer_microbatches(case), *fewer_samples(case)):
        first, _, last = one.runs
        assert first == last


def test_uneven_batches_stay_uneven_or_become_even() -> None:
    case = _case(program=(Train(batch_size=11, num_microbatches=4),))
    fewer = {(run.batch_size, run.num_microbatches) for one in fewer_microbatches(case) for run in one.runs}
    even = next(fewer_samples(case)).runs[0]

    assert fewer == {(2, 1), (5, 2), (8, 3)}
    assert even.batch_size == 8


# ------------------------------------------------------------------------------------------ which stages are kept


def _numbered(num_stages: int = 5, **changes) -> Case:
    """A case whose stages can be told apart: stage s has s + 1 linear maps."""
    stages = tuple(Stage(blocks=(Linear(),) * (s + 1)) for s in range(num_stages))
    return _case(num_stages, **{**changes, "model": {"stages": stages, **changes.pop("model", {})}})


def _kept(case: Case, p: int) -> list[int]:
    """The numbers of the stages that are left on `p` ranks."""
    return [
        sum(isinstance(block, Linear) for block in stage.blocks) - 1
        for stage in _of_ranks(case, p).model.stages
    ]


def _passing(source: int, last: int, *users: int) -> Case:
    one = Passage(kind="stream", source=source, last=last, users=users)
    return _numbered(model={"passages": (one,), "container": "tuple"})


def _mistaken(**fields) -> Case:
    return _numbered(program=(STEP, structs.replace(STEP, mistake=Mistake(**fields))))


def _by_hand(**fields) -> Case:
    return _numbered(program=(structs.replace(STEP, by_hand=ByHand(**fields)),))


def _slow(*late) -> Case:
    return _numbered(world=World(size=5, pipeline_ranks=(0, 1, 2, 3, 4), perturbations=late))


def _with_stage(s: int, stage: Stage) -> Case:
    stages = _numbered().model.stages
    return _numbered(model={"stages": (*stages[:s], stage, *stages[s + 1 :])})


KEPT = {
    "of equal stages the ends": (_numbered(), 2, [0, 4]),
    "the ends and the first between them": (_numbered(), 3, [0, 1, 4]),
    "a frozen stage": (_with_stage(3, Stage(blocks=(Linear(),) * 4, frozen=True)), 1, [3]),
    "a stage with a frozen block": (
        _with_stage(3, Stage(blocks=(*(Linear(),) * 3, Linear(frozen=True)))),
        1,
        [3],
    ),
    "a stage with a special block": (_with_stage(2, Stage(blocks=(*(Linear(),) * 3, Hooked()))), 1, [2]),
    "not one with ordinary blocks": (_with_stage(2, Stage(blocks=(*(Linear(),) * 3, Mlp(), Norm()))), 1, [0]),
    "where a passage begins and ends, and what it passes over": (_passing(1, 3, 3), 3, [1, 2, 3]),
    "who uses a passage": (_passing(0, 4, 3), 4, [0, 1, 3, 4]),
    "the only stage with a keyword argument": (_numbered(model={"kwargs": (Kwarg(stage=2),)}), 1, [2]),
    "not every stage with one": (
        _numbered(model={"kwargs": tuple(Kwarg(stage=s) for s in range(5))}),
        2,
        [0, 4],
    ),
    "tied stages": (_numbered(model={"tied": (1, 3)}), 2, [1, 3]),
    "where a mistake is made": (_mistaken(where="forward", how="raise", stage=2), 1, [2]),
    "where a mistake by hand is made": (_by_hand(mistake="weight_twice", stage=2), 1, [2]),
    "no stage without a mistake by hand": (_by_hand(late=True, stage=2), 1, [0]),
    "a stage that is late": (_slow(Perturbation(stage=3, milliseconds=2)), 1, [3]),
    "no stage behind a slow link": (_slow(SlowLink(rank=3, milliseconds=2)), 2, [0, 4]),
}


@pytest.mark.parametrize(("case", "p", "stages"), KEPT.values(), ids=KEPT)
def test_what_differs_is_kept_first_and_then_the_ends(case: Case, p: int, stages: list[int]) -> None:
    assert _kept(case, p) == stages


def test_fewer_ranks_fewer_stages_per_rank_or_both() -> None:
    world = World(size=3, pipeline_ranks=(0, 1, 2))
    case = _case(6, world=world, stages_per_rank=2, program=(Train(batch_size=2, num_microbatches=2),))
    found = [(one.num_ranks, one.stages_per_rank, one.runs[0].num_microbatches) for one in fewer_stages(case)]

    assert list(dict.fromkeys(size[:2] for size in found)) == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]
    assert found == [(p, v, m) for p, v, _ in found[::2] for m in (1, 2)]


@pytest.mark.parametrize(("p", "numbers"), [(1, {1, 2, 9}), (2, {1, 2, 4, 9}), (3, {1, 2, 3, 6, 9})])
def test_fewer_ranks_come_with_the_numbers_of_microbatches_that_schedules_ask_for(p, numbers) -> None:
    case = _case(4, program=(Train(batch_size=9, num_microbatches=9),))
    found = [one.runs[0].num_microbatches for one in fewer_stages(case) if one.num_ranks == p]

    assert found == sorted(numbers)


def test_the_head_of_a_classifier_goes_to_a_first_stage_that_is_left_alone() -> None:
    classifier = Stage(blocks=(Linear(), Head()))
    model = {"stages": (PLAIN, PLAIN, classifier), "classes": 3, "kwargs": (Kwarg(stage=0),)}
    case = _case(3, model=model, loss=LossSpec(kind="cross_entropy"))

    assert _of_ranks(case, 2).model.stages == (PLAIN, classifier)
    assert _of_ranks(case, 1).model.stages == (Stage(blocks=(*PLAIN.blocks, Head())),)


# ------------------------------------------------------------------------------------------ what moves with them


def _passages(one: Passage, p: int) -> tuple[Passage, ...]:
    return _of_ranks(_case(5, model={"passages": (one,), "container": "tuple"}), p).model.passages


@pytest.mark.parametrize(
    ("passage", "p", "left"),
    [
        # of users 1 and 2, stage 1 stays, and stage 2 becomes the next one kept, which is the last
        ((0, 4, 1, 2, 4), 4, (0, 3, 1, 2, 3)),
        ((1, 3, 3), 3, (0, 2, 2)),
        ((1, 3, 3), 2, (0, 1, 1)),
        ((0, 4), 2, (0, 1)),
        ((0, 1, 1), 2, (0, 1, 1)),
    ],
)
def test_a_passage_goes_on_between_what_is_left(passage, p, left) -> None:
    def made(source: int, last: int, *users: int) -> Passage:
        return Passage(kind="stream", source=source, last=last, users=users)

    assert _passages(made(*passage), p) == (made(*left),)


def test_a_passage_within_one_stage_is_gone() -> None:
    assert _passages(Passage(kind="stream", source=1, last=3, users=(3,)), 1) == ()


def test_ties_mistakes_and_keyword_arguments_get_the_new_numbers_of_their_stages() -> None:
    assert _of_ranks(_numbered(model={"tied": (1, 3)}), 2).model.tied == (0, 1)
    assert _of_ranks(_numbered(model={"kwargs": (Kwarg(stage=3),)}), 2).model.kwargs == (Kwarg(stage=1),)
    assert _of_ranks(_by_hand(mistake="weight_twice", stage=3), 2).trains[0].by_hand == ByHand(
        mistake="weight_twice", stage=1
    )
    assert _of_ranks(_mistaken(where="forward", how="raise", stage=3), 2).mistakes[0].stage == 1


def test_keyword_arguments_of_stages_that_are_gone_go_with_them() -> None:
    everywhere = tuple(Kwarg(stage=s) for s in range(4))

    assert _of_ranks(_case(4, model={"kwargs": everywhere}), 2).model.kwargs == (
        Kwarg(stage=0),
        Kwarg(stage=1),
    )


def test_a_wrong_plan_stays_on_a_rank_and_before_a_stage_that_is_left() -> None:
    def of(misplan: Misplan, num_stages: int) -> Misplan | None:
        ranks = tuple(range(4))
        case = _case(num_stages, world=World(size=4, pipeline_ranks=ranks, misplan=misplan))
        return _of_ranks(case, 2).world.misplan

    last_rank = Misplan(how="stages", rank=3)
    assert of(last_rank, 8) == structs.replace(last_rank, rank=1)
    assert of(structs.replace(last_rank, rank=0), 8) == structs.replace(last_rank, rank=0)
    assert of(Misplan(how="shape", stage=2), 4) == Misplan(how="shape", stage=0)
    assert of(Misplan(how="remainder"), 5) == Misplan(how="remainder")


def test_one_delay_stays_of_two_that_meet_on_one_stage() -> None:
    late = (SlowLink(rank=2, milliseconds=2), SlowLink(rank=3, milliseconds=2))
    world = World(size=4, pipeline_ranks=(0, 1, 2, 3), perturbations=late)

    assert _of_ranks(_case(4, world=world), 2).world.perturbations == (SlowLink(rank=1, milliseconds=2),)


# ------------------------------------------------------------------------------------------ processes


def test_bystanders_are_those_in_no_pipeline() -> None:
    replicas = Replicas(others=((2, 5),))
    world = World(size=7, pipeline_ranks=(1, 4), replicas=replicas)

    (found,) = without_bystanders(_case(2, world=world))

    assert found.world == World(size=4, pipeline_ranks=(0, 2), replicas=Replicas(others=((1, 3),)))
    assert list(without_bystanders(found)) == []


def _replicated(num: int, **fields) -> Case:
    others = tuple((2 * d, 2 * d + 1) for d in range(1, num))
    return _case(
        2, world=World(size=2 * num, pipeline_ranks=(0, 1), replicas=Replicas(others=others), **fields)
    )


@pytest.mark.parametrize(("num", "fewer"), [(2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (6, [1, 2, 5])])
def test_replicas_become_fewer(num: int, fewer: list[int]) -> None:
    case = _replicated(num)

    assert [one.world.num_replicas for one in fewer_processes(case)] == fewer
    assert list(fewer_processes(case)) == [_replicated(few) for few in fewer]


def test_a_delay_of_a_replica_that_is_gone_is_one_of_the_last_that_is_left() -> None:
    late = tuple(Perturbation(stage=0, milliseconds=2, replica=d) for d in (0, 2, 3))
    told = [
        [one.replica for one in case.world.perturbations]
        for case in fewer_processes(_replicated(4, perturbations=late))
    ]

    assert told == [[0], [0, 1], [0, 2]]


def test_delays_of_every_replica_stay_so() -> None:
    late = (Perturbation(stage=0, milliseconds=2),)

    assert [one.world.perturbations for one in fewer_processes(_replicated(2, perturbations=late))] == [late]


def test_replicas_of_stages_that_are_cut_stay() -> None:
    tensor = TensorParallel(others=((1, 5), (3, 7)), maps="column")
    replicas = Replicas(others=((2, 6),), wrapper="fully_shard")
    world = World(size=8, pipeline_ranks=(0, 4), replicas=replicas, tensor=tensor)

    assert list(fewer_processes(_case(2, world=world))) == []


# ------------------------------------------------------------------------------------------ batches


def _sizes(found) -> list[list[tuple[int, int]]]:
    return [[(run.num_microbatches, run.batch_size) for run in one.runs] for one in found]


def test_microbatches_become_fewer_and_keep_their_sizes() -> None:
    case = _case(2, program=(Train(batch_size=27, num_microbatches=9),))

    assert _sizes(fewer_microbatches(case)) == [[(1, 3)], [(2, 6)], [(4, 12)], [(8, 24)]]


def test_runs_of_different_numbers_of_microbatches_become_equal_or_one_of_them_fewer() -> None:
    program = (Train(batch_size=2, num_microbatches=2), Zero(), Eval(batch_size=3, num_microbatches=3))
    found = _sizes(fewer_microbatches(_case(3, program=program)))

    assert found == [[(1, 1), (1, 1)], [(1, 1), (3, 3)], [(2, 2), (1, 1)], [(2, 2), (2, 2)], [(2, 2), (2, 2)]]


def test_one_microbatch_is_the_least() -> None:
    assert list(fewer_microbatches(_case(2, program=(Train(batch_size=3, num_microbatches=1),)))) == []


def test_what_happens_in_a_microbatch_that_is_gone_happens_in_the_last_one() -> None:
    hand = ByHand(mistake="weight_twice", microbatch=3)
    mistake = Mistake(where="forward", how="raise", stage=1, microbatch=2)
    late = (Perturbation(stage=0, milliseconds=2, microbatch=3), SlowLink(rank=1, milliseconds=2))
    program = (structs.replace(STEP, by_hand=hand), structs.replace(STEP, mistake=mistake))
    case = _case(2, program=program, world=World(size=2, pipeline_ranks=(0, 1), perturbations=late))
    found = {
        one.runs[0].num_microbatches: (
            one.trains[0].by_hand.microbatch,
            one.trains[1].mistake.microbatch,
            one.world.perturbations[0].microbatch,
        )
        for one in fewer_microbatches(case)
    }

    assert found == {1: (0, 0, 0), 2: (1, 1, 1), 3: (2, 2, 2)}
    assert all(one.world.perturbations[1:] == late[1:] for one in fewer_microbatches(case))


def test_a_delay_is_clipped_to_the_longest_run() -> None:
    """A delay in the fourth microbatch shows in runs of four, even if another run becomes shorter."""
    late = (Perturbation(stage=0, milliseconds=2, microbatch=3),)
    program = (STEP, Train(batch_size=3, num_microbatches=3))
    case = _case(2, program=program, world=World(size=2, pipeline_ranks=(0, 1), perturbations=late))
    found = {
        tuple(run.num_microbatches for run in one.runs): one.world.perturbations[0].microbatch
        for one in fewer_microbatches(case)
    }

    assert found[4, 1] == 3
    assert found[1, 3] == 2
    assert found[1, 1] == 0


def test_samples_become_fewer_in_all_runs_or_in_those_of_one_size() -> None:
    program = (Train(batch_size=4, num_microbatches=2), Eval(batch_size=9, num_microbatches=3))
    found = _sizes(fewer_samples(_case(2, program=program)))

    assert found == [[(2, 2), (3, 3)], [(2, 2), (3, 9)], [(2, 4), (3, 3)], [(2, 4), (3, 6)], [(2, 4), (3, 6)]]


def test_one_sample_in_every_microbatch_is_the_least() -> None:
    assert list(fewer_samples(_case(2, program=(Train(batch_size=3, num_microbatches=3),)))) == []
    assert _sizes(fewer_samples(_case(2, program=(Train(batch_size=4, num_microbatches=3),)))) == [[(3, 3)]]


def test_a_batch_that_is_uneven_stays_so_with_fewer_samples() -> None:
    found = _sizes(fewer_samples(_case(2, program=(Train(batch_size=7, num_microbatches=3),))))

    assert found == [[(3, 6)], [(3, 4)]]
