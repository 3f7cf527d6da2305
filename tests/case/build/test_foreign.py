"""What a rank does not own has the same form and other values; what it owns is right."""

import pytest
import torch
from torch import nn

from pipeconform.adapter import module_state
from pipeconform.case import blocks
from pipeconform.case.build.data import loaded_state, make_batch
from pipeconform.case.build.foreign import annotated_for, batch_for, model_for, stage_for, state_for, stranger
from pipeconform.case.build.modules import build_stage
from pipeconform.case.build.whole import build_whole, split_of
from pipeconform.case.case import Kwarg, Load, Model, Split, Stage, Train, World
from tests.case.build.test_modules import ORDINARY
from tests.case.examples import small_case, with_model

CLAIMED = {"inputs": "first_stage", "targets": "last_stage", "kwargs": "stage"}


def _values(module: nn.Module) -> dict[str, torch.Tensor]:
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value for name, value in found.items() if value.is_floating_point()}


def _all_differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(bool(((one[name] - other[name]).abs() > 1e-3).any()) for name in one)


@pytest.mark.parametrize("block", ORDINARY, ids=repr)
def test_a_foreign_stage_has_the_same_form_and_other_finite_values(block) -> None:
    stage = Stage(blocks=(blocks.Linear(), block))
    case = with_model(small_case(), stages=(stage, stage), sequence=2, width=4)
    before = torch.get_rng_state()

    right, wrong, again = build_stage(case, 1), *(stage_for(case, 1, owned={0}, position=0) for _ in range(2))

    assert torch.equal(torch.get_rng_state(), before)
    described = [
        [
            (name, tuple(value.shape), value.dtype, value.requires_grad)
            for name, value in one.state_dict(keep_vars=True).items()
        ]
        for one in (right, wrong)
    ]
    assert described[0] == described[1]
    assert [type(part) for part in right.modules()] == [type(part) for part in wrong.modules()]
    assert _all_differ(_values(right), _values(wrong))
    assert all(torch.equal(value, _values(again)[name]) for name, value in _values(wrong).items())
    output = wrong(make_batch(case, 0).args[0])
    assert torch.isfinite(output).all()


def test_an_owned_stage_is_right_on_every_rank_that_owns_it() -> None:
    case = small_case()
    right = _values(build_stage(case, 1))

    for position in (0, 1):
        mine = _values(stage_for(case, 1, owned={0, 1}, position=position))
        assert all(torch.equal(mine[name], right[name]) for name in right)


def test_ranks_are_given_different_values_of_one_foreign_stage() -> None:
    case = small_case()

    assert _all_differ(*(_values(stage_for(case, 1, owned=(), position=p)) for p in (0, None)))


@pytest.mark.parametrize("owned", [{0}, {1}])
def test_a_parameter_that_an_owned_stage_shares_is_right_in_the_whole_model(owned) -> None:
    stage = Stage(blocks=(blocks.Linear(),))
    case = with_model(small_case(), stages=(stage, stage), tied=(0, 1))
    right = [build_stage(case, s) for s in (0, 1)]

    stages = model_for(case, owned=owned, position=0).get_submodule("stages")

    assert stages[0].tied is stages[1].tied
    assert torch.equal(stages[0].tied, right[0].tied)
    for s in (0, 1):
        same = torch.equal(stages[s].blocks[0].weight, right[s].blocks[0].weight)
        assert same is (s in owned)


@pytest.mark.parametrize("by", ["annotations", "points", "policy"])
def test_a_whole_model_for_a_front_end_is_right_where_this_rank_may_own_it(by) -> None:
    case = with_model(small_case(), split=Split(by=by))
    right = build_whole(case)

    wrong = annotated_for(case, owned={0}, position=0)

    parts = [list(one.get_submodule("stages").children()) for one in (right, wrong)]
    same = [
        all(torch.equal(_values(a)[name], _values(b)[name]) for name in _values(a))
        for a, b in zip(*parts, strict=True)
    ]
    assert same == [True, *[by == "policy"] * (len(same) - 1)]


def test_the_example_of_a_front_end_has_the_form_of_the_first_microbatch_and_not_its_values() -> None:
    kwargs = (Kwarg(stage=0), Kwarg(stage=1, kind="number"))
    case = with_model(small_case(), split=Split(by="points"), kwargs=kwargs)
    told, elsewhere = split_of(case), split_of(case, seed=stranger(case, 1).seed)
    assert told is not None
    assert elsewhere is not None

    ((right,), gains), ((wrong,), others) = told.example(), elsewhere.example()

    assert right.shape == wrong.shape
    assert not torch.equal(right, wrong)
    assert not torch.equal(gains["gain_0"], others["gain_0"])
    assert gains["gain_1"] == others["gain_1"]  # a number becomes part of what is traced


def test_a_loaded_state_is_right_for_owned_stages_only() -> None:
    stage = Stage(blocks=(blocks.Linear(), blocks.BatchNorm()))
    train = Train(batch_size=4, num_microbatches=2)
    case = with_model(small_case(program=(train, Load(), train)), stages=(stage, stage))
    right = loaded_state(case, 1)

    given = state_for(case, 1, owned={1}, position=1)

    assert all(torch.equal(given[1][name], value) for name, value in right[1].items())
    assert _all_differ(right[0], given[0])
    assert any(value.dtype == torch.int64 for value in right[0].values())  # a count, which must differ, too
    assert {name: value.shape for name, value in given[0].items()} == {
        name: value.shape for name, value in module_state({0: build_stage(case, 0)})[0].items()
    }


@pytest.mark.parametrize("claim", ["all", "first_stage"])
@pytest.mark.parametrize(("owned", "position"), [({0}, 0), ({1}, 1), ((), None)])
def test_inputs_and_targets_are_right_where_their_stage_is_owned_whatever_is_claimed(
    owned, position, claim
) -> None:
    case = small_case()
    right = make_batch(case, 0)
    targets = "all" if claim == "all" else "last_stage"

    given = batch_for(case, 0, owned=owned, position=position, inputs=claim, targets=targets, kwargs="stage")

    assert torch.equal(given.args[0], right.args[0]) is (0 in owned)
    assert torch.equal(given.target, right.target) is (1 in owned)
    for value, own in ((given.args[0], 0 in owned), (given.target, 1 in owned)):
        assert bool(value.isfinite().all()) is (own or claim == "all")
    split = torch.cat([micro.args[0] for micro in given.microbatches])
    assert torch.equal(split.nan_to_num(), given.args[0].nan_to_num())


@pytest.mark.parametrize("kind", ["tensor", "number", "objects", "listed"])
def test_keyword_arguments_of_another_rank_s_stage_are_of_the_same_form(kind) -> None:
    case = with_model(small_case(), kwargs=(Kwarg(stage=0, kind=kind), Kwarg(stage=1, kind=kind)))
    right = make_batch(case, 0).kwargs

    given = batch_for(case, 0, owned={0}, position=0, **CLAIMED).kwargs

    assert str(given[0]) == str(right[0])
    assert str(given[1]) != str(right[1])
    (one,), (other,) = right[1].values(), given[1].values()
    assert type(one) is type(other)
    assert getattr(one, "shape", None) == getattr(other, "shape", None)


def test_keyword_arguments_of_the_whole_pipeline_are_right_everywhere() -> None:
    case = with_model(small_case(), kwargs=(Kwarg(stage=1),))

    given = batch_for(case, 0, owned={0}, position=0, **{**CLAIMED, "kwargs": "pipeline"})

    assert torch.equal(given.kwargs[1]["gain_1"], make_batch(case, 0).kwargs[1]["gain_1"])


def test_foreign_parameters_are_of_the_same_magnitude() -> None:
    """Vectors are drawn with a deviation of 1/2, and maps by how many values they add up."""
    case = with_model(small_case(), width=400)
    linear = stage_for(case, 1, owned={0}, position=0).blocks[0]

    assert 0.04 < float(linear.weight.detach().std()) < 0.06
    assert 0.4 < float(linear.bias.detach().std()) < 0.6


def test_foreign_buffers_differ_in_every_element_and_variances_stay_positive() -> None:
    stage = Stage(blocks=(blocks.Linear(), blocks.BatchNorm()))
    case = with_model(small_case(), stages=(stage, stage))
    right, wrong = (
        dict(one.named_buffers()) for one in (build_stage(case, 1), stage_for(case, 1, owned=(), position=0))
    )

    assert all(
        bool((wrong[name] - right[name] >= 0.5).all()) for name in right if right[name].is_floating_point()
    )
    assert torch.equal(wrong["blocks.1.norm.num_batches_tracked"], right["blocks.1.norm.num_batches_tracked"])


def test_a_map_that_an_owned_part_shares_is_right_and_everything_else_of_a_foreign_part_is_wrong() -> None:
    stage = Stage(blocks=(blocks.Linear(),))
    case = with_model(small_case(), stages=(stage, stage), split=Split(tied=True))
    right, given = (
        dict(one.named_parameters())
        for one in (build_whole(case), annotated_for(case, owned={0}, position=0))
    )

    same = {name: torch.equal(value, given[name]) for name, value in right.items()}
    assert same == {name: not name.startswith("stages.1.blocks") for name in right}


@pytest.mark.parametrize("owned", [{0, 1}, {0}, {1}])
def test_a_rank_that_owns_both_ends_gets_right_inputs_and_targets_and_arguments_of_its_stages(owned) -> None:
    case = with_model(small_case(), kwargs=(Kwarg(stage=0), Kwarg(stage=1)))
    right = make_batch(case, 0)
    given = batch_for(case, 0, owned=owned, position=0, **CLAIMED)

    told = (given.args[0], given.target, given.kwargs[0]["gain_0"], given.kwargs[1]["gain_1"])
    true = (right.args[0], right.target, right.kwargs[0]["gain_0"], right.kwargs[1]["gain_1"])
    assert [torch.equal(one, other) for one, other in zip(told, true, strict=True)] == [
        0 in owned,
        1 in owned,
        0 in owned,
        1 in owned,
    ]


def test_arguments_of_a_stage_between_are_wrong_on_a_rank_that_owns_both_ends() -> None:
    stage = Stage(blocks=(blocks.Linear(),))
    case = small_case(
        model=Model(width=3, stages=(stage,) * 3, kwargs=(Kwarg(stage=1),)),
        world=World(size=3, pipeline_ranks=(0, 1, 2)),
    )
    given = batch_for(case, 0, owned={0, 2}, position=0, **CLAIMED)

    assert torch.equal(given.args[0], make_batch(case, 0).args[0])
    assert not torch.equal(given.kwargs[1]["gain_1"], make_batch(case, 0).kwargs[1]["gain_1"])


@pytest.mark.parametrize(("by", "right"), [("points", False), ("policy", True)])
def test_arguments_are_right_everywhere_if_a_front_end_chooses_where_to_cut(by: str, right: bool) -> None:
    case = with_model(small_case(), split=Split(by=by), kwargs=(Kwarg(stage=1),))
    given = batch_for(case, 0, owned={0}, position=0, **CLAIMED)

    assert torch.equal(given.kwargs[1]["gain_1"], make_batch(case, 0).kwargs[1]["gain_1"]) is right
