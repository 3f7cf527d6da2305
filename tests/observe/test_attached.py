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


class _Doubling:
    """An intruder that changes what it sees, so that it shows where it stands."""

    def __init__(self):
        self.told = []

    def before(self, stage, inputs):
        self.told.append(("before", stage))
        return 5, tuple(2 * one for one in inputs)

    def after(self, stage, microbatch, output):
        self.told.append(("after", stage, microbatch))
        return output + 1


def test_an_intruder_stands_around_a_forward_that_nobody_watches():
    module, intruder, ended, begun = nn.Identity(), _Doubling(), [], []
    listen(
        module,
        3,
        watcher=None,
        ended=lambda *told: ended.append(told),
        intruder=intruder,
        begins=begun.append,
    )
    output = module(torch.ones(2))

    assert intruder.told == [("before", 3), ("after", 3, 5)]
    assert begun == [3]
    assert torch.equal(output, torch.full((2,), 3.0))
    assert torch.equal(ended[0][2], torch.full((2,), 2.0))
