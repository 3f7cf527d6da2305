"""Modules on another device: shared parameters stay shared, and hooks come along."""

import pytest
import torch
from torch import nn

from pipeconform.adapter import placed
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.wrappers.modules import build


@pytest.fixture
def module():
    """Two layers that share a weight, which has hooks; one layer is frozen, and there is a buffer."""
    made = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    made[2].weight = made[0].weight
    made[2].bias.requires_grad_(False)
    made[0].weight.allreduce = False
    made[0].weight.register_hook(lambda gradient: 2 * gradient)
    made[0].weight.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.add_(1))
    return made


def test_module_to_itself_unties_and_forgets(module):
    """The control: torch makes two of a shared parameter where no tensor can take another's place, as on "meta"."""
    module.to("meta")
    assert module[2].weight is not module[0].weight
    assert module[0].weight._backward_hooks is None


def test_what_is_shared_stays_shared_and_hooks_come_along(module):
    hooks = list(module[0].weight._backward_hooks.values())
    after = list(module[0].weight._post_accumulate_grad_hooks.values())
    before = {name: one.requires_grad for name, one in module.named_parameters()}
    assert placed(module, "meta") is module

    assert {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} == {"meta"}
    assert {name: one.requires_grad for name, one in module.named_parameters()} == before
    assert module[2].weight is module[0].weight
    assert list(module[0].weight._backward_hooks.values()) == hooks
    assert list(module[0].weight._post_accumulate_grad_hooks.values()) == after
    assert module[0].weight.allreduce is False


def test_where_tensors_can_take_a_place_parameters_are_the_same_objects(module, monkeypatch):
    """As on CUDA. What is there already is left alone."""
    before = list(module.parameters())
    assert all(one is other for one, other in zip(placed(module, "cpu").parameters(), before, strict=True))
    monkeypatch.setattr(torch, "_has_compatible_shallow_copy_type", lambda one, other: True)
    moved = []
    monkeypatch.setattr(nn.Module, "to", lambda self, device: moved.append(device) or self)
    assert placed(module, "meta") is module
    assert moved == ["meta"]


def test_a_module_with_a_part_on_meta_is_not_moved_as_a_whole(module, monkeypatch):
    """On CUDA ``Module.to`` raises there: what is on "meta" has no data to be copied."""
    module.append(nn.Linear(3, 3, device="meta"))
    away = module[3].weight
    monkeypatch.setattr(torch, "_has_compatible_shallow_copy_type", lambda one, other: True)
    monkeypatch.setattr(nn.Module, "to", lambda self, device: pytest.fail("moved as a whole"))
    placed(module, "meta")

    assert {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} == {"meta"}
    assert module[2].weight is module[0].weight
    assert module[3].weight is away


@pytest.mark.parametrize("kind", ["plain", "shared", "conv"])
def test_modules_of_wrapper_cases_have_as_many_parameters_as_before(kind):
    module = build(WrapperCase(module=kind), rank=0)
    before = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    placed(module, "meta")
    assert {name: parameter.requires_grad for name, parameter in module.named_parameters()} == before
