"""The whole model of a case is the composition of its stages, and its split is named rightly."""

from __future__ import annotations

import msgspec
import pytest
import torch

from pipeconform.case.blocks import BatchNorm, Linear
from pipeconform.case.build import data
from pipeconform.case.build.modules import build_stage
from pipeconform.case.build.whole import (
    aliases_of,
    as_traced,
    build_whole,
    cuts_are_known,
    parts_are_known,
    split_of,
    whole_kwargs,
)
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


# ------------------------------------------------------------------------------------------ what is known of the cuts


@pytest.mark.parametrize(
    ("split", "cuts", "parts"),
    [
        ({}, True, True),
        ({"by": "points"}, True, True),
        ({"by": "policy"}, False, False),
        ({"skip": True}, False, True),
        ({"by": "points", "wrong": "unknown"}, False, False),
        ({"wrong": "branch"}, False, False),
    ],
)
def test_whoever_is_told_where_to_cut_makes_these_stages(split: dict, cuts: bool, parts: bool) -> None:
    case = _case(stages=3, **split)

    assert (cuts_are_known(case), parts_are_known(case)) == (cuts, parts)


def test_of_stages_given_one_by_one_nobody_makes_any() -> None:
    assert (cuts_are_known(small_case()), parts_are_known(small_case())) == (False, False)
    assert as_traced(small_case()) == small_case()


def test_a_traced_case_has_the_shapes_of_the_example_in_every_run() -> None:
    plain = _case(sequence=2)

    assert as_traced(plain) == plain
    assert as_traced(_case(sequence=2, longer=True)) == plain
    assert as_traced(_case(sequence=2, shorter_example=True)) == plain


# ------------------------------------------------------------------------------------------ what the model computes


def _x(rows: int = 2) -> torch.Tensor:
    return torch.tensor([[1.0, -2.0, 3.0]] * rows, dtype=torch.float64)


def _maps(case) -> list:
    return [part.blocks[0] for part in build_whole(case).stages]


def test_a_skip_connection_adds_half_of_the_first_stages_output_before_the_last_stage_only() -> None:
    case = _case(stages=4, skip=True)
    one, two, three, four = _maps(case)
    first = one(_x())

    assert torch.allclose(build_whole(case)(_x()), four(three(two(first)) + 0.5 * first))


def test_a_block_that_is_used_twice_is_the_first_of_its_stage() -> None:
    case = with_model(
        _case(reused=True), stages=(Stage(blocks=(Linear(), Linear())), Stage(blocks=(Linear(),)))
    )
    (first, second), (last,) = (part.blocks for part in build_whole(case).stages)
    x = second(first(torch.tanh(first(_x()))))

    assert torch.allclose(build_whole(case)(_x()), last(torch.tanh(last(x))))


def test_a_tied_map_ends_the_first_and_the_last_stage() -> None:
    case = _case(stages=3, tied=True)
    model = build_whole(case)
    one, two, three = (part.blocks[0] for part in model.stages)
    tie = model.stages[0].tie

    assert model.stages[2].tie is tie
    assert model.stages[1].tie is None
    assert torch.allclose(model(_x()), tie(three(two(tie(one(_x()))))))


@pytest.mark.parametrize("positive", [True, False])
def test_code_that_branches_looks_at_the_first_value_after_the_first_stage(positive: bool) -> None:
    case = _case(stages=3, wrong="branch")
    one, two, three = _maps(case)
    x = torch.linalg.solve(
        one.weight, torch.tensor([2.0 if positive else -2.0, 3.0, 3.0]).double() - one.bias
    )
    between = one(x.unsqueeze(0))

    assert bool(between[0, 0] > 0) is positive
    expected = three(two(torch.tanh(between) if positive else between))
    assert torch.allclose(build_whole(case)(x.unsqueeze(0)), expected)


def test_tensors_and_numbers_scale_the_stage_that_they_are_for() -> None:
    case = _case(kwargs=(Kwarg(stage=0), Kwarg(stage=1, kind="number")))
    one, two = _maps(case)
    gain = torch.tensor([0.5, 1.0], dtype=torch.float64)

    told = build_whole(case)(_x(), gain_0=gain, gain_1=0.25)

    assert torch.allclose(told, two(1.25 * one(_x() * (1 + gain).unsqueeze(-1))))


def test_marks_come_between_stages_and_never_after_the_last() -> None:
    for inside in (True, False):
        marks: list[str] = []
        model = build_whole(_case(stages=3, inside=inside), lambda seen=marks: seen.append("mark"))
        model.stages[2].register_forward_hook(lambda *_, seen=marks: seen.append("last"))
        model(_x())
        assert marks == ["mark", "mark", "last"]


def test_a_spare_map_is_there_only_to_be_named() -> None:
    names = dict(build_whole(_case(by="points", wrong="uncalled")).named_modules())

    assert "spare" in names
    assert "spare" not in dict(build_whole(_case(by="points")).named_modules())


# ------------------------------------------------------------------------------------------ the plan


@pytest.mark.parametrize("by", ["annotations", "policy", "points"])
def test_only_points_are_named_and_units_always(by: str) -> None:
    stages = (Stage(blocks=(Linear(), Linear())), Stage(blocks=(Linear(),)))
    plan = split_of(with_model(_case(by=by), stages=stages))

    assert plan is not None
    assert plan.by == by
    assert [point.module for point in plan.points] == (["stages.1"] if by == "points" else [])
    assert plan.units == ("stages.0.blocks.0", "stages.0.blocks.1", "stages.1.blocks.0")


@pytest.mark.parametrize("after", [True, False])
def test_points_say_whether_they_are_before_or_after_what_they_name(after: bool) -> None:
    plan = split_of(_case(stages=3, by="points", after=after))

    assert plan is not None
    assert {point.after for point in plan.points} == {after}


def test_the_annotated_model_marks_and_may_be_another_builders() -> None:
    marks: list[int] = []
    case = _case(stages=3)
    plan, other = split_of(case), split_of(case, lambda mark: "another model")

    assert plan is not None
    assert other is not None
    plan.annotated(lambda: marks.append(1))(_x())
    assert len(marks) == 2
    assert other.annotated(lambda: None) == "another model"


def test_the_example_is_of_the_first_run_wherever_it_stands() -> None:
    case = msgspec.structs.replace(
        _case(kwargs=(Kwarg(stage=0),)), program=(Zero(), TRAIN, Train(batch_size=6, num_microbatches=2))
    )
    plan = split_of(case)

    assert plan is not None
    (x,), kwargs = plan.example()
    micro = data.make_batch(case, 1).microbatches[0]
    assert torch.equal(x, micro.args[0])
    assert torch.equal(kwargs["gain_0"], micro.kwargs[0]["gain_0"])
    assert not x.requires_grad


def test_names_are_those_of_the_first_place_of_a_tensor_and_buffers_have_some() -> None:
    stages = (Stage(blocks=(BatchNorm(), Linear())), Stage(blocks=(Linear(),)))
    aliases = aliases_of(with_model(_case(), stages=stages))

    assert aliases["stages.0.blocks.0.norm.running_mean"] == "stages.0.blocks.0.norm.running_mean"
    assert all(name == first for name, first in aliases.items())
