import torch
from pipeconform.reference_impl.float32_sums import Float32Sums
from torch import nn


def _parameter(*, trained=True):
    return nn.Parameter(torch.ones(2, dtype=torch.bfloat16), requires_grad=trained)


def _backward(parameter, value):
    (parameter * value).sum().backward()


def test_gradients_are_taken_as_they_come_and_added_up_in_float32():
    parameter = _parameter()
    sums = Float32Sums([parameter])
    assert sums.of(parameter) is None

    _backward(parameter, 256.0)
    _backward(parameter, 1.0)

    assert parameter.grad is None
    assert sums.of(parameter).tolist() == [257.0, 257.0]
    assert sums.of(parameter).dtype == torch.float32


def test_cleared_sums_are_none_or_zero():
    parameter, unused = _parameter(), _parameter()
    sums = Float32Sums([parameter, unused])
    _backward(parameter, 2.0)

    sums.clear(set_to_none=False)
    assert sums.of(parameter).tolist() == [0.0, 0.0]
    assert sums.of(unused) is None
    sums.clear(set_to_none=True)
    assert sums.of(parameter) is None


def test_sums_are_named_by_stage_and_a_frozen_parameter_has_none():
    module = nn.Module()
    module.trained, module.frozen = _parameter(), _parameter(trained=False)
    sums = Float32Sums(module.parameters())
    _backward(module.trained, 3.0)

    found = sums.by_stage({4: module})[4]
    assert found["frozen"] is None
    assert found["trained"].tolist() == [3.0, 3.0]
