"""Replicas that share statistics: the oracle's joint run against plain autograd on all their data."""

import torch

from pipeconform.adapter import GradientScale
from pipeconform.case.blocks import Linear, SyncedNorm
from pipeconform.case.build.data import make_batch
from pipeconform.case.build.modules import build_model
from pipeconform.case.case import Model, Stage, Train, World
from pipeconform.case.replicas import Replicas
from pipeconform.oracle.full_model import reference
from tests.case.examples import small_case

CASE = small_case(
    model=Model(width=3, stages=(Stage(blocks=(Linear(), SyncedNorm())), Stage(blocks=(Linear(),)))),
    world=World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),))),
    program=(Train(batch_size=6, num_microbatches=2),),
)


def test_every_replica_has_its_own_samples_of_one_computation():
    model = build_model(CASE)
    batches = [make_batch(CASE, 0, replica=d) for d in range(2)]
    outputs, losses = [], []
    for k in range(2):
        x, target = (
            torch.cat([part(batch.microbatches[k]) for batch in batches])
            for part in (lambda one: one.args[0], lambda one: one.target)
        )
        output = model(x)
        each = ((output - target) ** 2).reshape(2, -1).mean(1)
        (each.mean() / 2).backward()
        outputs.append(output.detach().chunk(2))
        losses.append(each.detach())

    found = reference(CASE, scale=GradientScale(at="loss"))

    for d, steps in enumerate((found.steps, *found.others)):
        for k in range(2):
            torch.testing.assert_close(steps[0].outputs[k].leaves()[0].tensor(), outputs[k][d])
            torch.testing.assert_close(steps[0].losses[k].tensor(), losses[k][d])
        assert [one.leaves()[0].shape for one in steps[0].inputs[1][0]] == [(3, 3)]
        for s in range(2):
            for name, parameter in model.stages[s].named_parameters():
                gradient = steps[0].gradients[s][name]
                assert gradient is not None
                torch.testing.assert_close(gradient.tensor(), parameter.grad)
    tracked = found.others[0][0].buffers[0]["blocks.1.norm.num_batches_tracked"]
    assert tracked is not None
    assert tracked.tensor().item() == 2


def test_outputs_are_bounded_where_bounds_are_asked_for():
    plain, bounded = (reference(CASE, scale=GradientScale(), bounds=bounds) for bounds in ("none", "running"))

    assert plain.steps[0].output_bounds == ()
    for steps in (bounded.steps, *bounded.others):
        (first, second) = steps[0].output_bounds
        assert [one.shape for one in (*first, *second)] == [(3, 3)] * 2
        assert all(bool((one.tensor() > 0).all()) for one in first)
        assert len(steps[0].loss_bounds) == 2
