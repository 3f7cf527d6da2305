import pytest
import torch

from pipeconform.case import blocks
from pipeconform.case.build.data import loss_of, make_batch
from pipeconform.case.build.modules import build_model, build_stage
from pipeconform.case.case import Stage
from pipeconform.case.seeds import seed_of, seed_process
from tests.case.examples import small_case, with_model

ORDINARY = [
    blocks.Linear(),
    blocks.Mlp(),
    blocks.Norm(),
    blocks.Attention(),
    blocks.Decoder(),
    blocks.Decoder(kv_heads=2),
    blocks.BatchNorm(),
    blocks.Counting(),
    blocks.Counting(expanded=True),
    blocks.Dropout(),
    blocks.Shared(),
    blocks.Unused(),
    blocks.Branch(),
    blocks.Bypass(),
    blocks.Inplace(),
    blocks.Activation(),
    blocks.Activation(kind="relu"),
    blocks.Activation(kind="sigmoid"),
    blocks.Activation(kind="softmax"),
    blocks.Hooked(),
    blocks.Pieces(),
    blocks.Pieces(how="split"),
    blocks.Pieces(how="unbind"),
    blocks.Common(),
    blocks.Offsets(),
    blocks.Combined(),
    blocks.Combined(how="rows"),
    blocks.Joined(),
    blocks.Accumulating(),
    blocks.InputHooked(),
    blocks.InputHooked(together=True),
    blocks.GradientHooked(),
    blocks.GradientHooked(on="module"),
    blocks.Auxiliary(),
    blocks.Checkpointed(),
    blocks.Checkpointed(reentrant=True, dropout=True),
    blocks.Stateful(),
    blocks.Tied(),
    blocks.Tied(what="bias"),
]


def _case(block):
    stage = Stage(blocks=(blocks.Linear(), block))
    return with_model(small_case(), stages=(stage, stage), sequence=2, width=4)


@pytest.mark.parametrize("block", ORDINARY, ids=repr)
def test_two_builds_are_equal_and_touch_no_random_state(block) -> None:
    before = torch.get_rng_state()

    one, other = build_stage(_case(block), 0).state_dict(), build_stage(_case(block), 0).state_dict()

    assert torch.equal(torch.get_rng_state(), before)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_stages_and_seeds_have_parameters_of_their_own() -> None:
    case = _case(blocks.Linear())
    weights = [build_stage(case, s).blocks[0].weight for s in (0, 1)]

    assert not torch.equal(*weights)
    assert seed_of(1, "a") != seed_of(1, "b")


@pytest.mark.parametrize("block", ORDINARY, ids=repr)
def test_gradients_are_healthy(block) -> None:
    """A missing or misplaced gradient must stand out: no parameter's gradient is near zero by construction,
    but for those that are unused and the biases that normalisations and softmax cancel."""
    case = _case(block)
    model, batch = build_model(case), make_batch(case, 0)
    out = model(*batch.args)
    loss_of(case).function(out, batch.target).backward()
    cancelled = ("key.bias",)
    if isinstance(block, blocks.Norm | blocks.BatchNorm):
        cancelled += ("norm.bias", "blocks.0.bias")
    sizes = {
        name: p.grad.abs().max().item()
        for name, p in model.named_parameters()
        if p.grad is not None and not name.endswith(cancelled)
    }

    assert sizes
    assert min(sizes.values()) > 1e-3


def test_a_stage_refuses_wrong_inputs_by_name() -> None:
    stage = build_stage(small_case(), 1)

    with pytest.raises(TypeError, match="stage 1 takes 1 positional inputs, got 2"):
        stage(torch.zeros(1, 3), torch.zeros(1))
    with pytest.raises(TypeError, match=r"stage 1 got unexpected keyword arguments \['gain'\]"):
        stage(torch.zeros(1, 3), gain=1.0)


@pytest.mark.parametrize("views", [False, True])
def test_only_the_views_subject_hands_over_views(views) -> None:
    case = with_model(small_case(), sequence=2, view_outputs=views)

    assert build_stage(case, 0)(make_batch(case, 0).args[0])._is_view() is views


def test_frozen_blocks_and_stages_need_no_gradient() -> None:
    stages = (
        Stage(blocks=(blocks.Linear(), blocks.Linear()), frozen=True),
        Stage(blocks=(blocks.Linear(frozen=True), blocks.Linear())),
    )
    case = with_model(small_case(), stages=stages)
    flags = [[p.requires_grad for p in build_stage(case, s).parameters()] for s in (0, 1)]

    assert flags == [[False] * 4, [False, False, True, True]]


def test_a_process_is_seeded_as_torch_would_seed_it():
    """Seeding the CPU alone gives the numbers that ``torch.manual_seed`` gives there."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.randn(4)
        seed_process(5)
        assert torch.equal(expected, torch.randn(4))


def test_tied_stages_begin_with_equal_parameters_and_a_whole_model_holds_one():
    stage = Stage(blocks=(blocks.Linear(),))
    case = with_model(small_case(), stages=(stage, stage), tied=(0, 1))

    one, other = (build_stage(case, s) for s in (0, 1))
    model = build_model(case)

    assert one.tied is not other.tied
    assert torch.equal(one.tied, other.tied)
    assert not torch.equal(one.blocks[0].weight, other.blocks[0].weight)
    assert model.stages[0].tied is model.stages[1].tied
