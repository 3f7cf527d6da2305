"""Following a microbatch through what the ranks recorded."""

import pytest
import torch
from msgspec import structs

from pipeconform.case.blocks import Dropout, Linear
from pipeconform.case.build.data import make_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Model, Stage, Train, World
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Forward, Observation, StepShown, Structure
from pipeconform.observe.recorder import ForwardRecorder
from pipeconform.oracle.masks import masks_of
from tests.case.examples import small_case, with_model

STAGE = Stage(blocks=(Linear(), Dropout()))
CASE = with_model(
    small_case(program=(Train(batch_size=4, num_microbatches=2),)), stages=(STAGE, STAGE), width=8
)


def _recorded(*, probe: bool) -> tuple[ForwardRecorder, list[torch.Tensor]]:
    """Run both stages as an engine would, with a dry run on the first microbatch before that if `probe` is set."""
    recorder = ForwardRecorder()
    stages = [build_stage(CASE, s) for s in (0, 1)]
    for stage in stages:
        stage.recorder = recorder
    inputs = [micro.args[0] for micro in make_batch(CASE, 0).microbatches]
    if probe:
        stages[0](inputs[0])
        stages[1](torch.zeros_like(inputs[0]))
    outputs = [stages[0](x) for x in inputs]
    for y in outputs:
        stages[1](y)
    return recorder, inputs


def _observation(recorder: ForwardRecorder) -> Observation:
    return Observation(rank=0, pipeline_rank=0, steps=(StepShown(step=0, forwards=recorder.take()),))


def test_masks_belong_to_the_microbatch_whose_values_they_shaped() -> None:
    recorder, _ = _recorded(probe=False)
    observation = _observation(recorder)
    forwards = observation.steps[0].forwards

    found = dict(masks_of(CASE, [observation]))

    assert found == {
        (0, 0, 0): forwards[0].masks,
        (0, 0, 1): forwards[1].masks,
        (0, 1, 0): forwards[2].masks,
        (0, 1, 1): forwards[3].masks,
    }


def test_a_dry_run_on_the_same_input_is_not_followed() -> None:
    recorder, _ = _recorded(probe=True)
    observation = _observation(recorder)

    found = dict(masks_of(CASE, [observation]))

    assert found[0, 0, 0] == observation.steps[0].forwards[2].masks


@pytest.mark.parametrize(
    "extra",
    [
        "nothing",
        "a dry run",
        "a dry run that draws what the last one draws",
        "forwards before a backward, the last first",
        "one forward in a backward",
    ],
)
def test_microbatches_on_the_same_inputs_are_told_apart_by_their_order(extra) -> None:
    """The first stage dropped all of both, so that the second one received zeros twice."""
    recorder, _ = _recorded(probe=False)
    first = recorder.take()[:2]
    dropped = Structure.of(torch.zeros(2, 8, dtype=torch.float64))
    first = [structs.replace(one, output=dropped) for one in first]
    stage = build_stage(CASE, 1)
    stage.recorder = recorder
    for _ in range(3):
        stage(torch.zeros(2, 8, dtype=torch.float64))
    dry, *second = recorder.take()
    recorded = {
        "nothing": second,
        "a dry run": [dry, *second],
        "a dry run that draws what the last one draws": [structs.replace(second[1], call=7), *second],
        "forwards before a backward, the last first": [
            *second,
            *(structs.replace(f, call=7) for f in second[::-1]),
        ],
        "one forward in a backward": [*second, structs.replace(second[0], in_backward=True)],
    }[extra]
    observation = Observation(
        rank=0, pipeline_rank=0, steps=(StepShown(step=0, forwards=(*first, *recorded)),)
    )

    found = dict(masks_of(CASE, [observation]))

    assert second[0].masks != second[1].masks
    assert (found[0, 1, 0], found[0, 1, 1]) == (second[0].masks, second[1].masks)


def test_microbatches_keep_their_order_where_what_they_arrive_with_differs_and_then_is_alike() -> None:
    """The second stage is given one thing for the first and the last of three microbatches, then all give zeros."""
    case = small_case(
        model=Model(width=8, stages=(STAGE,) * 3),
        world=World(size=3, pipeline_ranks=(0, 1, 2)),
        program=(Train(batch_size=3, num_microbatches=3),),
    )
    inputs = [micro.args[0] for micro in make_batch(case, 0).microbatches]
    alike, other, zeros = (torch.full((1, 8), float(k), dtype=torch.float64) for k in (1, 2, 0))
    marks = iter(Array.of(torch.tensor([k])) for k in range(9))

    def forward(stage: int, given: torch.Tensor, output: torch.Tensor) -> Forward:
        return Forward(
            stage=stage,
            grad_enabled=True,
            inputs=(Structure.of(given),),
            output=Structure.of(output),
            masks=(next(marks),),
        )

    between = (alike, other, alike)
    ran = [forward(0, x, y) for x, y in zip(inputs, between, strict=True)]
    ran += [forward(1, y, zeros) for y in between]
    ran += [forward(2, zeros, zeros) for _ in between]
    observation = Observation(rank=0, pipeline_rank=0, steps=(StepShown(step=0, forwards=tuple(ran)),))

    found = dict(masks_of(case, [observation]))

    assert found == {(0, s, k): ran[3 * s + k].masks for s in range(3) for k in range(3)}


def test_a_microbatch_is_lost_where_its_value_was_corrupted() -> None:
    recorder, _ = _recorded(probe=False)
    kept = recorder.take()
    observation = Observation(
        rank=0, pipeline_rank=0, steps=(StepShown(step=0, forwards=(*kept[:2], *kept[3:])),)
    )

    assert set(dict(masks_of(CASE, [observation]))) == {(0, 0, 1), (0, 1, 1)}


def test_without_dropout_there_is_nothing_to_follow() -> None:
    assert masks_of(small_case(), []) == ()
