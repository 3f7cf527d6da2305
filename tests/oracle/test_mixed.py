"""The oracle's stages in bfloat16 with float32 parameters, beside a model that casts by hand."""

import pytest
import torch

from pipeconform.adapter import GradientScale
from pipeconform.case.blocks import Counting, Linear
from pipeconform.case.build.data import loss_of, make_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Stage
from pipeconform.oracle.full_model import reference
from pipeconform.oracle.mixed import narrowed
from tests.case.examples import in_mixed_precision, small_case, with_model


@pytest.fixture
def case():
    return in_mixed_precision(small_case())


def test_gradients_of_each_microbatch_are_in_bfloat16_and_their_sums_in_float32(case):
    found = reference(case, scale=GradientScale(at="loss")).steps[0]
    total = {}
    for replica in range(2):
        batch = make_batch(case, 0, replica=replica)
        for micro in batch.microbatches:
            (x,) = micro.args
            weights = []
            for s in range(2):
                stage = build_stage(case, s).to(torch.bfloat16)
                weights.append((s, stage.blocks[0].weight))
                x = stage(x.to(torch.bfloat16))
            (loss_of(case).function(x, micro.target) / 2).backward()
            for s, weight in weights:
                total[s] = total.get(s, 0.0) + weight.grad.float()

    assert found.outputs[0].array.dtype == "bfloat16"
    assert found.inputs[0][0][0].array.dtype == "bfloat16"
    for s, right in total.items():
        gradient = found.gradients[s]["blocks.0.weight"].tensor()
        assert gradient.dtype == torch.float32
        assert torch.allclose(gradient, right / 2, rtol=1e-6, atol=0)


def test_parameters_and_floating_arguments_are_cast_and_nothing_else(case):
    stage = build_stage(with_model(case, stages=(Stage(blocks=(Linear(), Counting())),) * 2), 0)
    before = {name: value.clone() for name, value in stage.state_dict().items()}
    numbers, mask = torch.randn(3, 3), torch.ones(3, dtype=torch.bool)

    call, args, kwargs = narrowed(stage, (numbers,), {"mask": mask, "gain": numbers, "name": "a"})

    assert [args[0].dtype, kwargs["mask"].dtype, kwargs["gain"].dtype] == [
        torch.bfloat16,
        torch.bool,
        torch.bfloat16,
    ]
    assert kwargs["name"] == "a"
    assert call(*args).dtype == torch.bfloat16
    after = stage.state_dict()
    assert {name: value.dtype for name, value in after.items()} == {n: v.dtype for n, v in before.items()}
    assert (before["blocks.1.count"].item(), after["blocks.1.count"].item()) == (0, 1)
