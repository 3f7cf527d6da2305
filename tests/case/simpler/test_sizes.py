"""What is said of a stage or microbatch that is gone is said of one that is left."""

from __future__ import annotations

from pipeconform.case.blocks import Hooked, Linear
from pipeconform.case.case import Case, Kwarg, Model, Passage, Stage, Train, World
from pipeconform.case.misplans import Misplan
from pipeconform.case.mistakes import Mistake
from pipeconform.case.perturbations import Perturbation, SlowLink
from pipeconform.case.simpler.sizes import fewer_microbatches, fewer_samples, fewer_stages
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
