"""Conventions stated without our oracle: numbers worked out by hand, and plain torch.

What is right in most tests of the judgements comes from the oracle itself. Were the oracle's convention another one,
the tests and it would agree. Here it is held against what the contract and torch's documentation say.
"""

from __future__ import annotations

import dataclasses
import math

import msgspec
import pytest
import torch
from torch.nn.functional import linear, mse_loss

from pipeconform.adapter import Feature, GradientScale
from pipeconform.case.build import data
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import LossSpec, Optimize, Sgd, Train, World, Zero
from pipeconform.case.replicas import Replicas
from pipeconform.judge.norms import gradient_norm_is_right
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.array import Array
from pipeconform.observe.observation import StepExpected
from pipeconform.oracle.full_model import reference
from tests.case.examples import EVERYTHING
from tests.judge.honest import TRAIN, changed, expecting, honest, plain_case, told

scale_is_right = JUDGEMENTS["TRN-3"].judge

UNEVEN = Train(batch_size=5, num_microbatches=3)
"""Microbatches of two, two and one samples."""
WEIGHT = "blocks.0.weight"


def _parameters(case, stage):
    weight, bias = (p.detach().clone().requires_grad_() for p in build_stage(case, stage).parameters())
    return weight, bias


def _by_hand(case, index=0, *, replica=0):
    """Per microbatch its loss and the gradients of all four parameters; two linear maps in plain torch."""
    batch = data.make_batch(case, index, replica=replica)
    parameters = [p for s in range(2) for p in _parameters(case, s)]
    found = []
    for micro in batch.microbatches:
        (x,) = micro.args
        output = linear(linear(x, *parameters[:2]), *parameters[2:])
        loss = mse_loss(output, micro.target, reduction=case.loss.reduction)
        found.append((loss.detach(), torch.autograd.grad(loss, parameters), output.detach()))
    return found


def _gradients(step: StepExpected):
    return [array.tensor() for s in range(2) for array in step.gradients[s].values()]


def _close(mine, right):
    return all(torch.allclose(a, b, rtol=1e-13, atol=0) for a, b in zip(mine, right, strict=True))


def _case(run=TRAIN, **changes):
    return plain_case(run, **changes)


def _right(case, **asked):
    return reference(case, **{"scale": EVERYTHING.scale, **asked}).steps[0]


@pytest.mark.parametrize("scale", [GradientScale(at="loss"), GradientScale(at="gradient")])
@pytest.mark.parametrize("run", [TRAIN, UNEVEN], ids=["even", "uneven"])
def test_a_mean_weighs_microbatches_alike_wherever_it_is_divided(scale, run):
    case = _case(run)
    found = _by_hand(case)
    right = [sum(g[i] for _, g, _ in found) / 3 for i in range(4)]

    expected = _right(case, scale=scale)

    assert _close(_gradients(expected), right)
    assert [loss.tensor() for loss in expected.losses] == [loss for loss, _, _ in found]
    assert [one.leaves()[0].tensor().tolist() for one in expected.outputs] == [
        output.tolist() for _, _, output in found
    ]


@pytest.mark.parametrize("scale", [GradientScale(at="loss"), GradientScale(at="gradient")])
def test_a_sum_is_divided_by_nothing(scale):
    case = _case(loss=LossSpec(reduction="sum"))
    right = [sum(g[i] for _, g, _ in _by_hand(case)) for i in range(4)]

    assert _close(_gradients(_right(case, scale=scale)), right)


def test_a_mean_over_the_batch_weighs_samples_alike():
    """It is the loss of the whole batch, which torch computes at once."""
    case = _case(UNEVEN)
    batch = data.make_batch(case, 0)
    parameters = [p for s in range(2) for p in _parameters(case, s)]
    (x,) = batch.args
    loss = mse_loss(linear(linear(x, *parameters[:2]), *parameters[2:]), batch.target)
    right = torch.autograd.grad(loss, parameters)

    over_batch = _right(case, scale=GradientScale(at="loss"), loss_over="batch")
    over_microbatches = _right(case, scale=GradientScale(at="loss"))

    assert _close(_gradients(over_batch), right)
    assert not _close(_gradients(over_microbatches), right)


def test_the_batch_s_loss_is_the_mean_over_samples_where_it_is_declared_to_be():
    """Losses 1, 2 and 6 of two, two and one samples: 3 by microbatches, 12/5 by samples."""
    losses = tuple(Array.of(torch.tensor(x, dtype=torch.float64)) for x in (1.0, 2.0, 6.0))
    by_microbatch = dataclasses.replace(
        EVERYTHING, features=EVERYTHING.features - {Feature.MICROBATCH_LOSSES}
    )
    by_sample = dataclasses.replace(by_microbatch, loss_over="batch")

    def judged(capabilities, total):
        made = honest(_case(UNEVEN), capabilities=capabilities)
        zeros = tuple(Array.of(torch.zeros((), dtype=torch.float64)) for _ in losses)
        made = expecting(made, losses=losses, loss_bounds=zeros)
        value = Array.of(torch.tensor(total, dtype=torch.float64))
        return [kind for kind, *_ in told("TRN-2", changed(made, rank=1, losses=None, loss=value))]

    assert judged(by_microbatch, 3.0) == judged(by_sample, 12 / 5) == []
    assert judged(by_microbatch, 12 / 5) == judged(by_sample, 3.0) == ["total loss"]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_bound_of_one_loss_is_a_few_round_offs_wide(reduction):
    """Three losses and a division: 5ε of the sum of their sizes, of which a mean is a third; no bound of their own."""
    values = (1.0, -3.0, 7.0)
    losses = tuple(Array.of(torch.tensor(x, dtype=torch.float64)) for x in values)
    capabilities = dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.MICROBATCH_LOSSES})
    made = honest(_case(loss=LossSpec(reduction=reduction)), capabilities=capabilities)
    zeros = tuple(Array.of(torch.zeros((), dtype=torch.float64)) for _ in losses)
    made = expecting(made, losses=losses, loss_bounds=zeros)
    right = sum(values) / (3 if reduction == "mean" else 1)
    most = 5 * 2.0**-52 * 11.0 / (3 if reduction == "mean" else 1)

    def judged(total):
        value = Array.of(torch.tensor(total, dtype=torch.float64))
        return told("TRN-2", changed(made, rank=1, losses=None, loss=value))

    for sign in (1, -1):
        assert judged(right + sign * 0.9 * most) == []
        assert judged(right + sign * 1.2 * most) != []


def test_accumulation_adds_up_steps_that_are_divided_each():
    case = plain_case(TRAIN, TRAIN)
    first, second = ([sum(g[i] for _, g, _ in _by_hand(case, n)) / 3 for i in range(4)] for n in range(2))

    for at in ("loss", "gradient"):
        steps = reference(case, scale=GradientScale(at=at)).steps
        assert _close(_gradients(steps[0]), first)
        assert _close(_gradients(steps[1]), [a + b for a, b in zip(first, second, strict=True)])


@pytest.mark.parametrize("at", ["loss", "gradient"])
def test_replicas_have_the_mean_of_their_gradients_and_losses_of_their_own(at):
    case = plain_case(world=World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),))))
    own = [_by_hand(case, replica=d) for d in range(2)]
    sums = [[sum(g[i] for _, g, _ in found) / 3 for i in range(4)] for found in own]
    right = [(a + b) / 2 for a, b in zip(*sums, strict=True)]

    found = reference(case, scale=GradientScale(at=at))

    for steps, one in zip((found.steps, *found.others), own, strict=True):
        assert _close(_gradients(steps[0]), right)
        assert [loss.tensor() for loss in steps[0].losses] == [loss for loss, _, _ in one]


@pytest.mark.parametrize("at", ["loss", "gradient"])
def test_input_gradients_are_divided_only_where_that_is_declared(at):
    case = plain_case()
    model = msgspec.structs.replace(case.model, input_requires_grad=True)
    case = msgspec.structs.replace(case, model=model)
    batch = data.make_batch(case, 0)
    parameters = [p for s in range(2) for p in _parameters(case, s)]
    inputs = batch.args[0].detach().clone().requires_grad_()
    for part, micro in zip(inputs.chunk(3), batch.microbatches, strict=True):
        mse_loss(linear(linear(part, *parameters[:2]), *parameters[2:]), micro.target).backward()
    whole = inputs.grad

    def found(*, scaled):
        scale = GradientScale(at=at, input_gradients_scaled=scaled)
        return _right(case, scale=scale).input_gradients[0].tensor()

    divided = at == "loss"
    assert torch.allclose(found(scaled=True), whole / 3, rtol=1e-13, atol=0)
    assert torch.allclose(found(scaled=False), whole / 3 if divided else whole, rtol=1e-13, atol=0)


def test_sgd_with_momentum_is_torch_s_formula():
    """v ← μ·v + g, p ← p − lr·v; the first v is g."""
    case = plain_case(TRAIN, Optimize(), Zero(), TRAIN, Optimize(), optimizer=Sgd(lr=0.125, momentum=0.5))
    steps = reference(case, scale=EVERYTHING.scale).steps
    weight = _parameters(case, 0)[0].detach()
    first, second = (steps[n].gradients[0][WEIGHT].tensor() for n in (0, 3))

    after = weight - 0.125 * first
    assert torch.allclose(steps[1].parameters[0][WEIGHT].tensor(), after, rtol=1e-14, atol=0)
    after = after - 0.125 * (0.5 * first + second)
    assert torch.allclose(steps[4].parameters[0][WEIGHT].tensor(), after, rtol=1e-14, atol=0)


def _with_gradients(made, values):
    """Both ranks' weights have these gradients, biases none."""
    for rank, value in enumerate(values):
        own = {WEIGHT: Array.of(torch.tensor(value, dtype=torch.float64)), "blocks.0.bias": None}
        made = changed(made, rank=rank, gradients={rank: own})
    return made


def test_the_norm_is_the_root_of_the_sum_of_all_squares():
    """1, 2, 2 on one rank and 4, 12, 84 on the other: √(9 + 7216) = 85."""
    made = _with_gradients(honest(plain_case()), ([1.0, 2.0, 2.0], [4.0, 12.0, 84.0]))
    right = math.sqrt(1 + 4 + 4 + 16 + 144 + 7056)

    def judged(norm):
        value = Array.of(torch.tensor(norm, dtype=torch.float64))
        both = changed(changed(made, rank=0, gradient_norm=value), rank=1, gradient_norm=value)
        return [(one.kind, one.rank) for one in gradient_norm_is_right(both)]

    assert right == 85.0
    assert judged(85.0) == judged(85.0 * (1 + 8 * 2.0**-52)) == judged(85.0 * (1 - 8 * 2.0**-52)) == []
    for wrong in (85.0 * (1 + 16 * 2.0**-52), 85.0 * (1 - 16 * 2.0**-52), 3.0, 7225.0):
        assert judged(wrong) == [("norm", 0), ("norm", 1)]


def test_the_bound_of_another_order_of_microbatches_is_the_published_one():
    """(m + 2)·ε·Σₖ|gₖ| with ε twice the unit round-off (Higham, section 4.2), here m = 3; of a mean a third."""
    case = _case()
    absolute = [sum(g[i].abs() for _, g, _ in _by_hand(case)) / 3 for i in range(4)]

    for at in ("loss", "gradient"):
        step = reference(case, scale=GradientScale(at=at), bounds="reassociated").steps[0]
        bounds = [array.tensor() for s in range(2) for array in step.gradient_bounds[s].values()]
        assert _close(bounds, [5 * 2.0**-52 * one for one in absolute])


def test_all_of_a_stage_twice_is_told_as_a_factor():
    made = honest(plain_case())
    doubled = {n: Array.of(g.tensor() * 2) for n, g in made.shown[1].steps[0].gradients[1].items()}
    wrong = changed(made, rank=1, gradients={1: doubled})
    (finding,) = scale_is_right(wrong)

    assert (finding.kind, finding.stage, finding.rank) == ("scale", 1, 1)
    assert "2 times the reference's" in finding.message
