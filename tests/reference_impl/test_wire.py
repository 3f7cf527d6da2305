"""Every value arrives as it was sent: bits, dtype, shape, flags, containers."""

from __future__ import annotations

import pytest
import torch
from pipeconform.reference_impl.wire import (
    PREFIX_BYTES,
    beginning_of,
    pack,
    pack_failure,
    prefix_of,
    unpack,
    unpack_failure,
)

CPU = torch.device("cpu")
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def _carried(value):
    message = pack(value, device=CPU)
    assert message.dtype is torch.uint8
    assert prefix_of(beginning_of(message[:PREFIX_BYTES])) == (0, message.numel())
    return _unpacked(message)


def _unpacked(message):
    return unpack(message, beginning_of(message))


def _same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    whole = expected.resolve_conj().clone(memory_format=torch.contiguous_format)
    return (
        found.dtype is expected.dtype
        and found.shape == expected.shape
        and found.is_contiguous()
        and torch.equal(found.reshape(-1).view(torch.uint8), whole.reshape(-1).view(torch.uint8))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 0), (5, 3), (1, 2, 1, 3, 1, 2, 1)], ids=str)
def test_any_dtype_and_shape_arrives_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    value = (torch.randn(shape, dtype=torch.float64) * 8).to(dtype)

    assert _same_bits(_carried(value), value)


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.tensor(2.0).expand(2, 3),
        torch.tensor(2.0).expand(1, 1),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(6)[::2],
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.tensor([float("nan"), float("inf"), -0.0]),
        torch.tensor([2**53 + 1, -(2**63)]),
    ],
)
def test_any_layout_and_value_arrives(value: torch.Tensor) -> None:
    assert _same_bits(_carried(value), value)


@pytest.mark.parametrize(
    "tree",
    [
        torch.ones(2),
        (torch.ones(2),),
        [torch.ones(2)],
        (),
        {"a": torch.ones(1), "b": [torch.zeros(2), (torch.ones(3), None)]},
        [None, torch.ones(2), None],
        tuple(torch.full((k,), float(k)) for k in range(200)),
    ],
)
def test_containers_and_absent_tensors_arrive(tree) -> None:
    found = _carried(tree)

    assert type(found) is type(tree)
    assert repr(found) == repr(tree)


def test_flags_arrive_and_tensors_are_leaves_of_their_own() -> None:
    first, second = _carried((torch.ones(2, requires_grad=True) * 2, torch.ones(2)))

    assert (first.requires_grad, second.requires_grad, first.is_leaf) == (True, False, True)
    before = first._version
    second.add_(1)
    assert first._version == before
    assert first.detach().tolist() == [2.0, 2.0]


def test_a_message_is_a_copy() -> None:
    value = torch.ones(3)
    message = pack(value, device=CPU)
    value.zero_()

    assert _unpacked(message).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("text", ["rank 1 failed", "", "später – ∑", "long " * 100])
def test_the_news_of_a_failure_arrives(text: str) -> None:
    message = pack_failure(text, device=CPU)

    begun = beginning_of(message)
    assert prefix_of(begun) == (1, message.numel())
    assert unpack_failure(message, begun) == text


def test_each_message_has_memory_of_its_own_though_it_looks_like_others() -> None:
    first, second = (pack(torch.full((3,), value), device=CPU) for value in (1.0, 2.0))

    found = _unpacked(first)
    _unpacked(second).zero_()

    assert found.tolist() == [1.0, 1.0, 1.0]
    assert _unpacked(pack(torch.full((3,), 3.0), device=CPU)).tolist() == [3.0, 3.0, 3.0]


def test_tensors_lie_where_torch_would_put_them() -> None:
    """Kernels may choose by alignment; what arrives must be computed with as what was sent."""
    found = _carried((torch.ones(3, dtype=torch.bool), torch.ones(5, dtype=torch.float64)))

    assert [leaf.data_ptr() % 64 for leaf in found] == [0, 0]
