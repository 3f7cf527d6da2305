"""Elements that are moved, converted or added up carry their errors with them, and no others."""

import pytest
import torch
import torch.nn.functional as F

from pipeconform.bounds.running_error import RunningError

pytestmark = pytest.mark.usefixtures("reproducible")

U = 2.0**-24
"""Half of a float32's last digit at 1."""


def certain_errors(operation, *values):
    """The errors of an operation on values that were rounded once; without samples, so that they are exact."""
    with torch.no_grad(), RunningError(samples=0) as analysis:
        found = operation(*(value / 3 for value in values))
    return analysis.error(found)


WHERE = torch.tensor([[0, 2], [1, 1], [2, 0]])
INTO = {
    "tril": (lambda x: x.tril(), lambda x: x.tril_(), lambda x, out: torch.tril(x, out=out)),
    "scatter": (
        lambda x: x.scatter(1, WHERE, x * 2),
        lambda x: x.scatter_(1, WHERE, x * 2),
        lambda x, out: torch.scatter(x, 1, WHERE, x * 2, out=out),
    ),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.3), lambda x: x.masked_fill_(x > 0, 0.3), None),
    "index_fill": (
        lambda x: x.index_fill(0, torch.tensor([0, 2]), 0.3),
        lambda x: x.index_fill_(0, torch.tensor([0, 2]), 0.3),
        None,
    ),
    "index_put": (
        lambda x: x.index_put((torch.tensor([0, 2]),), x[:2] * 2),
        lambda x: x.index_put_((torch.tensor([0, 2]),), x[:2] * 2),
        None,
    ),
    "index_add": (
        lambda x: x.index_add(0, torch.tensor([0, 0, 2]), x * 2, alpha=0.3),
        lambda x: x.index_add_(0, torch.tensor([0, 0, 2]), x * 2, alpha=0.3),
        lambda x, out: torch.index_add(x, 0, torch.tensor([0, 0, 2]), x * 2, alpha=0.3, out=out),
    ),
    "gather": (lambda x: x.gather(1, WHERE), None, lambda x, out: torch.gather(x, 1, WHERE, out=out)),
    "cat": (lambda x: torch.cat([x, x]), None, lambda x, out: torch.cat([x, x], out=out)),
    "index_select": (
        lambda x: x.index_select(0, torch.tensor([2, 0])),
        None,
        lambda x, out: torch.index_select(x, 0, torch.tensor([2, 0]), out=out),
    ),
    "elu": (F.elu, lambda x: F.elu(x, inplace=True), None),
    "leaky_relu": (F.leaky_relu, lambda x: F.leaky_relu(x, inplace=True), None),
    "hardswish": (F.hardswish, lambda x: F.hardswish(x, inplace=True), None),
    "mish": (F.mish, lambda x: F.mish(x, inplace=True), None),
    "silu": (F.silu, lambda x: F.silu(x, inplace=True), None),
}
"""An operation, the same in place, and the same with a tensor to write into."""


@pytest.mark.parametrize("name", INTO)
def test_what_is_written_in_place_or_into_a_given_tensor_errs_as_a_new_tensor(name):
    new, in_place, out = INTO[name]
    x = torch.randn(3, 3)
    errors = certain_errors(new, x)

    assert bool((errors > 0).any())
    if in_place is not None:
        assert torch.equal(certain_errors(in_place, x), errors)
    if out is not None:
        assert torch.equal(certain_errors(lambda x: out(x, torch.empty(errors.shape)), x), errors)


MOVED = {
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 0),
    "repeat": lambda x: x.repeat(2, 1),
    "tril": lambda x: x.tril(),
    "pad": lambda x: F.pad(x, (1, 2)),
    "gather": lambda x: x.gather(1, WHERE),
    "index": lambda x: x[[0, 0, 2]],
    "select": lambda x: x[1].clone(),
    "cat": lambda x: torch.cat([x, x[:1]]),
    "stack": lambda x: torch.stack([x, x], 1),
    "contiguous": lambda x: x.T.contiguous(),
    "masked_select": lambda x: x[torch.eye(3).bool()],
    "split": lambda x: torch.cat(x.split([1, 2])[::-1]),
    "embedding": lambda x: F.embedding(torch.tensor([2, 0]), x),
}


@pytest.mark.parametrize("name", MOVED)
def test_errors_move_as_their_elements_do_and_grow_by_nothing(name):
    move, x = MOVED[name], torch.randn(3, 3)
    alone = certain_errors(lambda x: x, x)

    torch.testing.assert_close(certain_errors(move, x), move(alone), rtol=1e-6, atol=0)


def test_a_constant_that_fills_is_rounded_once_and_an_exact_one_is_not():
    edge = certain_errors(lambda x: F.pad(x, (1, 0), value=0.3), torch.zeros(2))
    exact = certain_errors(lambda x: F.pad(x, (1, 0), value=2.0), torch.zeros(2))

    assert 0.3 * U <= edge[0] <= 2.001 * 0.3 * U
    assert edge[1:].tolist() == [0, 0]
    assert exact.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("value", "dtype", "rounds"),
    [
        (torch.tensor([1.5]), torch.float64, False),
        (torch.tensor([1.5]), torch.float32, False),
        (torch.tensor([1.5]), torch.bfloat16, True),
        (torch.tensor([1.5], dtype=torch.float64), torch.float32, True),
        # a float16 has more digits, and a smaller range: what is tiny may be lost
        (torch.tensor([1.5], dtype=torch.bfloat16), torch.float16, True),
        (torch.tensor([256]), torch.bfloat16, False),
        (torch.tensor([257]), torch.bfloat16, True),
        (torch.tensor([2**24]), torch.float32, False),
        (torch.tensor([2**24 + 1]), torch.float32, True),
        (torch.tensor([True]), torch.float32, False),
    ],
    ids=str,
)
def test_a_value_is_rounded_where_its_new_dtype_has_fewer_digits_than_it_may_need(value, dtype, rounds):
    with RunningError(samples=0) as analysis:
        found = value.to(dtype)

    assert bool(analysis.error(found)) is rounds
    if rounds:
        half = torch.finfo(dtype).eps / 2
        assert analysis.error(found).item() == pytest.approx(half * float(value), rel=0.02)


def test_elements_sent_to_one_place_err_once_for_each_addition():
    """(count)·u·Σ|x| with something there before, one addition less without."""
    where, x = torch.tensor([0, 0, 0, 2]), torch.tensor([1.0, 2.0, 4.0, 8.0])
    with RunningError(samples=0) as analysis:
        added = torch.zeros(3).index_add(0, where, x)
        scattered = torch.zeros(3).scatter_add(0, where, x)
        put = torch.zeros(3).index_put((where,), x, accumulate=True)
        looked_up = torch.ones(3, 1, requires_grad=True)
        F.embedding(where, looked_up).backward(x[:, None])

    expected = [3 * U * 7, 0, 1 * U * 8]
    for found in (added, scattered, put):
        assert analysis.error(found).tolist() == pytest.approx(expected)
    assert analysis.error(looked_up.grad).flatten().tolist() == pytest.approx([2 * U * 7, 0, 0])


def test_what_is_put_replaces_the_error_that_was_there():
    def put(x):
        return x.index_put((torch.tensor([0]),), torch.tensor([7.0]))

    alone = certain_errors(lambda x: x, torch.ones(2))
    assert certain_errors(put, torch.ones(2)).tolist() == [0, pytest.approx(alone[1].item())]
