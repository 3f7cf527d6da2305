"""The oracle's mean over replicas."""

import types

import torch
from torch import nn

from pipeconform.adapter import GradientScale
from pipeconform.case.build.data import loss_of, make_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Optimize, Sgd, Train, World, Zero
from pipeconform.case.replicas import Replicas
from pipeconform.oracle.averaging import average, widen
from pipeconform.oracle.full_model import reference
from tests.case.examples import small_case

SCALE = GradientScale()


def run(*gradients, magnitudes=None):
    parameters = [nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else torch.full((2,), gradient, dtype=torch.float64)
    before = [None] * len(parameters)
    return types.SimpleNamespace(
        parameters=parameters, reassociation={}, magnitudes=magnitudes, before=before, divisor=1
    )


def test_a_replica_without_a_gradient_counts_as_zero_and_none_stays_none():
    runs = [run(1.0, None, None), run(3.0, 4.0, None)]
    average(runs)

    for one in runs:
        found = [None if p.grad is None else p.grad.tolist() for p in one.parameters]
        assert found == [[2.0, 2.0], [2.0, 2.0], None]


def test_the_bound_of_a_mean_holds_for_another_order_of_additions():
    values = [0.1, 0.2, 0.7]
    runs = [run(value, magnitudes={}) for value in values]
    widen(runs, average(runs))

    other = torch.full((2,), sum(value / 3 for value in reversed(values)), dtype=torch.float64)
    mean, bound = runs[0].parameters[0].grad, runs[0].reassociation[0]
    assert bool(((mean - other).abs() <= bound).all())
    assert bool((bound < 1e-14).all())


def case_of(**changes):
    replicas = Replicas(others=((2, 3),))
    return small_case(world=World(size=4, pipeline_ranks=(0, 1), replicas=replicas), **changes)


def test_replicas_have_their_own_losses_and_the_same_gradients_and_parameters():
    train = Train(batch_size=4, num_microbatches=2)
    case = case_of(program=(train, Optimize(), Zero(), train), optimizer=Sgd(lr=0.5))
    found = reference(case, scale=SCALE)
    alone = reference(small_case(), scale=SCALE)

    assert len(found.others) == 1
    for first, second in zip(found.steps, found.others[0], strict=True):
        assert first.gradients == second.gradients
        assert first.parameters == second.parameters
    assert found.steps[0].losses != found.others[0][0].losses
    assert found.steps[0].losses == alone.steps[0].losses
    assert found.steps[0].gradients != alone.steps[0].gradients


def test_under_running_analysis_the_mean_is_the_same_and_has_a_bound():
    train = Train(batch_size=4, num_microbatches=2)
    case = case_of(program=(train,))
    mean = reference(case, scale=SCALE).steps[0].gradients[1]["blocks.0.weight"]
    bounded = reference(case, scale=SCALE, bounds="running")

    assert mean is not None
    assert bounded.steps[0].gradients[1]["blocks.0.weight"] == mean
    assert bool((bounded.steps[0].gradient_bounds[1]["blocks.0.weight"].tensor() > 0).all())


def test_two_replicas_are_averaged_before_the_mean_over_microbatches_is_taken():
    """Wrappers average in the backward, engines divide by m afterwards; the other order rounds differently."""
    train = Train(batch_size=6, num_microbatches=3)
    at = GradientScale(at="gradient", input_gradients_scaled=False)
    found = reference(case_of(program=(train,)), scale=at).steps[0].gradients[0]["blocks.0.weight"]
    sums = []
    for d in range(2):
        case = case_of(program=(train,))
        stages = [build_stage(case, s) for s in range(2)]
        for micro in make_batch(case, 0, replica=d).microbatches:
            output = stages[1](stages[0](*micro.args))
            loss_of(case).function(output, micro.target).backward()
        sums.append(stages[0].blocks[0].weight.grad)

    assert found is not None
    assert torch.equal(found.tensor(), (sums[0] + sums[1]) / 2 / 3)
