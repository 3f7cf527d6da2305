"""What a boundary is: containers, dtypes and sizes, and which of them may change."""

from __future__ import annotations

import pytest
import torch
from pipeconform.reference_impl.metadata import BoundaryMeta, check_same


def test_a_boundary_describes_itself() -> None:
    meta = BoundaryMeta.of((torch.zeros(2, 3, requires_grad=True), torch.arange(2)))

    assert [str(tensor) for tensor in meta.tensors] == ["float32[2, 3]", "int64[2]"]
    assert meta.differentiable
    assert not BoundaryMeta.of(torch.arange(2)).differentiable


def test_the_batch_dimension_may_change_within_a_step() -> None:
    check_same(BoundaryMeta.of(torch.zeros(3, 2)), frozen=BoundaryMeta.of(torch.zeros(3, 5)), batch_dim=1)
    with pytest.raises(ValueError, match="changed its shape"):
        check_same(BoundaryMeta.of(torch.zeros(3, 2)), frozen=BoundaryMeta.of(torch.zeros(3, 5)), batch_dim=0)
