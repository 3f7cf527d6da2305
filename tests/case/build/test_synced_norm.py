"""The suite's batch norm over replicas against torch's over all rows at once."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeconform import run_on_ranks
from pipeconform.case.build.synced_norm import SyncedNormLayer, synchronise

WIDTH, ROWS = 3, 4


def data(ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and gradients of the outputs; the ranks' rows one after the other."""
    torch.manual_seed(5)
    x, outer = (torch.randn(ranks * ROWS, WIDTH, dtype=torch.float64) for _ in range(2))
    return x * 2 + 1, outer


def layer() -> SyncedNormLayer:
    torch.manual_seed(7)
    made = SyncedNormLayer(WIDTH).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def computed(made: SyncedNormLayer, x: torch.Tensor, outer: torch.Tensor) -> dict[str, torch.Tensor]:
    """What one forward and backward leaves."""
    x = x.clone().requires_grad_()
    y = made(x)
    y.backward(outer)
    assert x.grad is not None
    found = {"output": y.detach(), "input gradient": x.grad, **dict(made.named_buffers())}
    return found | {name: p.grad for name, p in made.named_parameters() if p.grad is not None}


def on_a_rank() -> dict[str, torch.Tensor]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(ranks)))
    made = layer()
    synchronise(copy.deepcopy(made).modules(), group)  # a copy of what is synchronised can be made
    synchronise(made.modules(), group)
    mine = [tensor[rank * ROWS : (rank + 1) * ROWS] for tensor in data(ranks)]
    found = computed(copy.deepcopy(made), *mine)
    dist.destroy_process_group(group)
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_statistics_and_gradients_are_those_of_all_rows_together(ranks):
    expected = computed(layer(), *data(ranks))

    found = run_on_ranks(on_a_rank, ranks=ranks).values

    for name in ("output", "input gradient"):
        torch.testing.assert_close(torch.cat([one[name] for one in found]), expected[name])
    for name in ("norm.weight", "norm.bias"):  # every rank has what its own rows contribute
        torch.testing.assert_close(sum(one[name] for one in found), expected[name])
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        for one in found:
            torch.testing.assert_close(one[name], expected[name])


def test_alone_it_is_torchs_batch_norm_and_in_evaluation_too():
    x, _ = data(1)
    made, plain = layer(), nn.BatchNorm1d(WIDTH).double()
    plain.load_state_dict(made.norm.state_dict())

    assert torch.equal(made(x.reshape(2, 2, WIDTH)), plain(x).reshape(2, 2, WIDTH))
    assert torch.equal(made.eval()(x), plain.eval()(x))


def test_replicas_that_have_the_same_rows_change_nothing_but_the_running_variance(monkeypatch):
    """Two replicas with equal rows have their mean and variance, of twice as many rows."""
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: tensor.mul_(2))
    x, outer = data(1)
    alone, together = layer(), layer()
    synchronise([together, nn.Linear(1, 1)], "a group")
    expected, found = (computed(made, x, outer) for made in (alone, together))
    unbiased = (2 * ROWS / (2 * ROWS - 1)) / (ROWS / (ROWS - 1))
    drawn = (expected["norm.running_var"] - 0.9) * unbiased + 0.9

    torch.testing.assert_close(found.pop("norm.running_var"), drawn)
    expected.pop("norm.running_var")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    assert together.over is not None
    assert copy.deepcopy(together).over is together.over


def test_in_evaluation_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: pytest.fail("asked"))
    made = layer()
    synchronise([made], "a group")
    x, _ = data(1)

    assert torch.equal(made.eval()(x), layer().eval()(x))
