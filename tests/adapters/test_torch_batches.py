"""What torch's adapter gives to a step: whole batches, or microbatches of a source."""

import inspect

import pytest
import torch
from torch.distributed.pipelining import schedules

from pipeconform.adapter import Batch, Feature, Microbatch
from pipeconform.adapters.torch_batches import step_arguments
from pipeconform.adapters.torch_pipelining import TorchPipelining


def _micro(number):
    rows = torch.full((2, 3), float(number))
    return Microbatch(args=(rows,), kwargs={0: {"a": number}, 1: {"b": -number}}, target=rows.T)


def _batch(source=None):
    one = _micro(7)
    return Batch(
        args=() if source else one.args,
        kwargs={} if source else one.kwargs,
        target=None if source else one.target,
        loss_kwargs={},
        batch_dim=1,
        num_microbatches=2,
        microbatches=(),
        source=source,
    )


def test_a_whole_batch_is_given_as_it_is_with_targets_whose_first_dimension_is_the_batch():
    args, given = step_arguments(_batch(), owned=(0, 1), targets=True, batch_dim=1)

    assert torch.equal(args[0], _batch().args[0])
    assert given.keys() == {"a", "b", "target"}
    assert given["target"].shape == (2, 3)


@pytest.mark.parametrize(
    ("owned", "targets", "keys"),
    [
        ((0,), False, {"arg_mbs", "kwarg_mbs"}),
        ((1,), False, {"kwarg_mbs"}),
        ((1,), True, {"kwarg_mbs", "target_mbs"}),
        ((0, 1), True, {"arg_mbs", "kwarg_mbs", "target_mbs"}),
    ],
)
def test_of_a_source_every_rank_takes_a_step_and_gives_what_its_stages_need(owned, targets, keys):
    source = iter([_micro(number) for number in range(5)])

    args, given = step_arguments(_batch(source), owned=owned, targets=targets, batch_dim=1)

    assert args == ()
    assert given.keys() == keys
    names = {0: "a", 1: "b"}
    assert [set(one) for one in given["kwarg_mbs"]] == [{names[s] for s in owned}] * 2
    if 0 in owned:
        assert [one["a"] for one in given["kwarg_mbs"]] == [0, 1]
        assert [one[0][0, 0].item() for one in given["arg_mbs"]] == [0.0, 1.0]
    if targets:
        assert [tuple(one.shape) for one in given["target_mbs"]] == [(2, 3)] * 2
    assert next(source).kwargs[0]["a"] == 2  # what is left is the next step's


def test_a_source_that_ends_gives_too_few():
    _, given = step_arguments(_batch(iter([_micro(0)])), owned=(0,), targets=False, batch_dim=1)

    assert len(given["arg_mbs"]) == len(given["kwarg_mbs"]) == 1


def test_sources_are_claimed_where_steps_take_split_batches():
    taken = "arg_mbs" in inspect.signature(schedules.PipelineScheduleMulti.step).parameters
    claims = TorchPipelining().describe().capabilities

    assert (Feature.BATCH_SOURCES in claims.features) == taken
    assert any("arg_mbs" in text for text in claims.elsewhere) != taken
