"""Modules of wrapper cases on the device of a rank."""

import pytest

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.wrappers.modules import build, placed


@pytest.mark.parametrize("kind", ["plain", "shared", "conv"])
def test_a_module_has_as_many_parameters_on_another_device(kind):
    """`Module.to` makes two of a shared one where the memory of tensors cannot be exchanged: as on "meta"."""
    module = build(WrapperCase(module=kind), rank=0)
    before = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    placed(module, "meta")

    assert {name: parameter.requires_grad for name, parameter in module.named_parameters()} == before
    assert {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} == {"meta"}


def test_what_is_there_is_left_alone():
    module = build(WrapperCase(module="shared"), rank=0)
    before = list(module.parameters())
    assert all(one is other for one, other in zip(placed(module, "cpu").parameters(), before, strict=True))
