"""The whole model of a case is the composition of its stages, and its split is named rightly."""

from __future__ import annotations

import pytest
import torch

from pipeconform.case.blocks import BatchNorm, Linear
from pipeconform.case.build import data
from pipeconform.case.build.modules import build_stage
from pipeconform.case.build.whole import aliases_of, build_whole, split_of, whole_kwargs
from pipeconform.case.case import Eval, Kwarg, Split, Stage, Train, Zero
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.errors import BadCaseError
from pipeconform.report.case_text import describe_case
from tests.case.examples import small_case, with_model

TRAIN = Train(batch_size=4, num_microbatches=2)


def _case(*, stages: int = 2, kwargs: tuple[Kwarg, ...] = (), sequence: int = 0, **split: object):
    model = {"kwargs": kwargs, "sequence": sequence, "split": Split(**split)}
    case = small_case()
    if stages != 2:
        from pipeconform.case.case import Model, World

        one = Stage(blocks=(Linear(),))
        return small_case(
            model=Model(width=3, stages=(one,) * stages, **model),
            world=World(size=stages, pipeline_ranks=tuple(range(stages))),
        )
    return with_model(case, **model)


def test_the_whole_model_is_the_chain_of_the_stages() -> None:
    kwargs = (Kwarg(stage=0), Kwarg(stage=1, kind="number"))
    case = _case(kwargs=kwargs)
    micro = data.make_batch(case, 0).microbatches[0]
    x = micro.args[0]
    for s in range(2):
        x = build_stage(case, s)(x, **micro.kwargs[s])

    assert torch.equal(build_whole(case)(*micro.args, **whole_kwargs(micro.kwargs)), x)


def test_the_model_marks_where_stages_end() -> None:
    marks: list[int] = []
    build_whole(_case(stages=3), lambda: marks.append(1))(torch.randn(2, 3, dtype=torch.float64))

    assert len(marks) == 2


def test_marks_may_stand_inside_the_submodules_that_compute_the_stages() -> None:
    marks: list[str] = []
    case = _case(stages=3, inside=True)
    model = build_whole(case, lambda: marks.append("mark"))
    for s, stage in enumerate(model.stages):
        stage.register_forward_hook(lambda *_, s=s: marks.append(f"end of {s}"))
    x = torch.randn(2, 3, dtype=torch.float64)

    assert torch.equal(model(x), build_whole(_case(stages=3))(x))
    assert marks == ["mark", "end of 0", "mark", "end of 1", "end of 2"]
    assert describe_case(case) != describe_case(_case(stages=3))


@pytest.mark.parametrize("flag", ["reused", "skip", "tied"])
def test_what_the_model_contains_changes_its_output(flag: str) -> None:
    x = torch.randn(2, 3, dtype=torch.float64)

    assert not torch.equal(build_whole(_case(stages=3, **{flag: True}))(x), build_whole(_case(stages=3))(x))


def test_a_tied_map_has_two_names() -> None:
    aliases = aliases_of(_case(tied=True))

    assert aliases["stages.1.tie.weight"] == aliases["stages.0.tie.weight"] == "stages.0.tie.weight"
    assert aliases["stages.1.blocks.0.weight"] == "stages.1.blocks.0.weight"


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ({}, ["stages.1", "stages.2"]),
        ({"after": True}, ["stages.0", "stages.1"]),
        ({"wrong": "unknown"}, ["stages.1", "stages.9"]),
        ({"wrong": "uncalled"}, ["stages.1", "spare"]),
        ({"wrong": "empty"}, ["stages.1", "stages.0"]),
        ({"wrong": "empty", "after": True}, ["stages.0", "stages.2"]),
    ],
)
def test_points_are_named(split: dict, names: list[str]) -> None:
    case = _case(stages=3, by="points", **split)
    plan, modules = split_of(case), dict(build_whole(case).named_modules())

    assert plan is not None
    assert [point.module for point in plan.points] == names
    assert ("stages.9" in names) == any(name not in modules for name in names)
    assert all(unit in modules for unit in plan.units)


def test_the_example_is_the_first_microbatch() -> None:
    case = _case(kwargs=(Kwarg(stage=1),))
    plan = split_of(case)
    assert plan is not None
    args, kwargs = plan.example()
    micro = data.make_batch(case, 0).microbatches[0]

    assert torch.equal(args[0], micro.args[0])
    assert torch.equal(kwargs["gain_1"], micro.kwargs[1]["gain_1"])
    assert split_of(small_case()) is None


def test_the_last_sequences_are_longer() -> None:
    case = _case(sequence=2, longer=True)

    assert data.make_batch(case, 0).args[0].shape == (4, 2, 3)
    assert data.make_batch(case, 2).args[0].shape == (4, 3, 3)
    assert data.make_batch(case, 2).target.shape == (4, 3, 3)


def test_the_example_s_sequences_are_shorter_than_all() -> None:
    case = _case(sequence=2, shorter_example=True)
    (example,), _ = split_of(case).example()

    assert [data.make_batch(case, step).microbatches[0].args[0].shape for step in (0, 2)] == [(2, 3, 3)] * 2
    assert example.shape == (2, 2, 3)
    assert "longer by one than the example's" in describe_case(case)


@pytest.mark.parametrize(
    ("case", "focus"),
    [
        (_case(), Focus.WHOLE),
        (_case(by="points", wrong="unknown"), Focus.WHOLE_WRONG),
        (_case(tied=True), Focus.WHOLE_CONTENTS),
        (_case(kwargs=(Kwarg(stage=0),)), Focus.WHOLE_CONTENTS),
        (
            with_model(_case(), stages=(Stage(blocks=(BatchNorm(),)), Stage(blocks=(Linear(),)))),
            Focus.WHOLE_CONTENTS,
        ),
        (_case(sequence=2, longer=True), Focus.WHOLE_SHAPES),
        (_case(sequence=2, shorter_example=True), Focus.WHOLE_SHAPES),
    ],
)
def test_a_case_says_what_it_is_about(case, focus: Focus) -> None:
    assert traits(case) == {focus}
    assert "given whole, split by" in describe_case(case)


def test_other_batch_sizes_are_about_shapes() -> None:
    import msgspec

    program = (TRAIN, Zero(), Train(batch_size=6, num_microbatches=2))

    assert traits(msgspec.structs.replace(_case(), program=program)) == {Focus.WHOLE_SHAPES}
    evaluated = (TRAIN, Eval(batch_size=4, num_microbatches=2))
    assert traits(msgspec.structs.replace(_case(), program=evaluated)) == {Focus.WHOLE}


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"skip": True}, "a skip connection needs 3"),
        ({"wrong": "unknown"}, "needs model.split.by 'points'"),
        ({"longer": True}, "need a sequence"),
        ({"shorter_example": True}, "need a sequence"),
        ({"by": "policy", "inside": True}, "needs model.split.by 'annotations'"),
    ],
)
def test_impossible_splits_are_refused(split: dict, words: str) -> None:
    with pytest.raises(BadCaseError, match=words):
        _case(**split)
