import pytest
import torch
from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.build import data
from pipeconform.case.build.exact import LARGE
from pipeconform.case.build.modules import build_model
from pipeconform.case.case import Load, Model, Sgd, Stage, Train, Zero
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case

PAIR = Train(batch_size=2, num_microbatches=2)
MODEL = Model(width=4, dtype="bfloat16", stages=(Stage(blocks=(blocks.Gain(),)),) * 2)
CASE = small_case(model=MODEL, program=(PAIR, Zero(), PAIR))


def _batch(case, step, replica=0):
    return data.make_batch(case, step, replica=replica)


def test_only_the_first_sample_that_the_first_replica_trains_on_is_large():
    first, later, other = _batch(CASE, 0), _batch(CASE, 2), _batch(CASE, 0, replica=1)

    assert first.args[0][:, 0].tolist() == [LARGE, 1.0]
    assert later.args[0].eq(1).all()
    assert other.args[0].eq(1).all()
    assert first.target.tolist() == (first.args[0] - 1).tolist()


def test_samples_are_in_the_batch_dimension():
    case = structs.replace(CASE, model=structs.replace(MODEL, sequence=1, batch_dim=1))

    inputs = _batch(case, 0).args[0]
    assert inputs.shape == (1, 2, 4)
    assert inputs[0, :, 0].tolist() == [LARGE, 1.0]


def test_nothing_is_rounded_but_a_sum_of_samples():
    """In float64, in which 257 is a number, and in bfloat16, in which it is not."""
    found = {}
    for dtype in (torch.float64, torch.bfloat16):
        model, loss = build_model(CASE).to(dtype), data.loss_of(CASE).function
        sums, alone = [], []
        for part in _batch(CASE, 0).microbatches:
            model.zero_grad()
            loss(model(part.args[0].to(dtype)), part.target.to(dtype)).backward()
            alone.append([p.grad.double() for p in model.parameters()])
            sums.append([p.grad for p in model.parameters()])
        found[dtype] = alone, [a + b for a, b in zip(*sums, strict=True)]
    exact, rounded = found[torch.float64], found[torch.bfloat16]
    for a, b in zip(exact[0], rounded[0], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert [total[0].item() for total in exact[1]] == [257 / 2] * 2
    assert [total[0].item() for total in rounded[1]] == [256 / 2] * 2


@pytest.mark.parametrize(
    ("changes", "model", "why"),
    [
        ({}, {"dtype": "float16"}, "in bfloat16 or float32"),
        ({}, {"stages": (MODEL.stages[0], Stage(blocks=(blocks.Gain(), blocks.Linear())))}, "of such blocks"),
        ({}, {"sequence": 2}, "a model.sequence of at most 1"),
        ({}, {"tied": (0, 1)}, "has no classes"),
        ({"program": (Train(batch_size=4, num_microbatches=2),)}, {}, "has one sample"),
        ({"optimizer": Sgd(lr=0.1)}, {}, "no optimizer"),
        ({"program": (PAIR, Load())}, {}, "loads nothing"),
    ],
)
def test_what_would_be_rounded_is_refused(changes, model, why):
    with pytest.raises(BadCaseError, match=why):
        structs.replace(CASE, model=structs.replace(MODEL, **model), **changes)
