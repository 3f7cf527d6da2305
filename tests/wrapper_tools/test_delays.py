"""A model that takes its time computes what it did."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from pipeconform.errors import UsageError
from pipeconform.wrapper_tools import Delayed


def _times(**delays: float) -> tuple[float, float, torch.Tensor]:
    torch.manual_seed(0)
    module = Delayed(nn.Linear(3, 2), **delays)
    x = torch.ones(4, 3, requires_grad=True)
    begun = time.monotonic()
    output = module(x)
    forward = time.monotonic() - begun
    begun = time.monotonic()
    output.sum().backward()
    assert x.grad is not None
    return forward, time.monotonic() - begun, module.module.weight.grad


@pytest.mark.parametrize(
    ("delays", "forward", "backward"),
    [({"loss": 0.1}, 0, 0.1), ({"reduction": 0.1}, 0, 0.1), ({"freeing": 0.1}, 0.1, 0)],
)
def test_each_delay_is_where_it_says_and_changes_no_gradient(delays, forward, backward) -> None:
    _, _, plain = _times()
    first, second, gradient = _times(**delays)

    assert first >= forward
    assert second >= backward
    assert torch.equal(gradient, plain)


def test_the_loss_is_late_before_any_gradient_and_the_reduction_after_them() -> None:
    seen: list[str] = []
    module = Delayed(nn.Linear(3, 2), loss=0.001, reduction=0.001)
    module.module.weight.register_hook(lambda g: seen.append("weight"))
    real = time.sleep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda s: (seen.append("sleep"), real(s))[1])
        module(torch.ones(4, 3, requires_grad=True)).sum().backward()

    assert seen[0] == "sleep"
    assert sorted(seen) == ["sleep", "sleep", "weight"]


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(UsageError, match=r"reduction is -1 s"):
        Delayed(nn.Linear(1, 1), reduction=-1)
