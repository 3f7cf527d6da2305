"""Modules that the harness did not make tell what passes them, while they are listened to."""

import torch
from torch import fx, nn

from pipeconform.observe.attached import listen
from pipeconform.observe.gradients import Gradients


def _listened(module):
    watcher, ended = Gradients(), []
    listen(module, 3, watcher=watcher, ended=lambda *told: (ended.append(told), watcher.passed(3, told[2])))
    return watcher, ended


def test_inputs_output_and_gradients_of_every_forward_are_told():
    module = nn.Linear(3, 3)
    watcher, ended = _listened(module)
    first, second = (torch.ones(2, 3, requires_grad=True) for _ in range(2))

    outputs = [module(first), module(second)]
    outputs[1].backward(torch.full((2, 3), 2.0))

    assert [
        (s, inputs[0] is given) for (s, inputs, _), given in zip(ended, (first, second), strict=True)
    ] == [
        (3, True),
        (3, True),
    ]
    assert all(told is output for (_, _, told), output in zip(ended, outputs, strict=True))
    flow = watcher.take()
    assert [(one.kind, one.stage, one.call) for one in flow] == [
        ("output gradient", 3, 1),
        ("input gradient", 3, 1),
    ]
    assert torch.equal(flow[1].value.tensor(), second.grad)


def test_a_traced_module_computes_as_before():
    def traced():
        torch.manual_seed(0)
        return fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))

    plain, listened = traced(), traced()
    watcher, _ = _listened(listened)
    x, y = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    for module, value in ((plain, x), (listened, y)):
        module(value).sum().backward()

    assert torch.equal(x.grad, y.grad)
    assert len(watcher.take()) == 2
