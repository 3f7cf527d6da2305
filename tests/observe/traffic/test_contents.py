"""What came by an operation is found again by its bytes, however an engine moves it; what did not is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipeconform.observe.traffic.contents import Carried, ContentFinder, bytes_of
from pipeconform.observe.traffic.recorder import TrafficRecorder
from pipeconform.observe.traffic.records import Arrived
from pipeconform.ranks.on_ranks import run_on_ranks

SHAPE = (3, 4)


def sent() -> Tensor:
    """What rank 0 sends; every rank knows it, as one that computes it by itself does."""
    return torch.arange(12, dtype=torch.float64).reshape(SHAPE) + 0.5


def as_it_is(rank: int) -> Tensor:
    value = sent() if rank == 0 else torch.empty(SHAPE, dtype=torch.float64)
    (dist.send if rank == 0 else dist.recv)(value, 1 - rank)
    return value.clone().requires_grad_()


def behind_a_head(rank: int) -> Tensor:
    message = torch.zeros(8 + 96, dtype=torch.uint8)
    message[8:] = sent().view(-1).view(torch.uint8)
    message = message if rank == 0 else torch.empty_like(message)
    (dist.send if rank == 0 else dist.recv)(message, 1 - rank)
    return message[8:].view(torch.float64).reshape(SHAPE)


def in_pieces(rank: int) -> Tensor:
    value = sent().view(-1) if rank == 0 else torch.empty(12, dtype=torch.float64)
    for piece in value.split(5):
        (dist.send if rank == 0 else dist.recv)(piece, 1 - rank)
    return value.reshape(SHAPE)


def in_a_batch(rank: int) -> Tensor:
    value = sent() if rank == 0 else torch.empty(SHAPE, dtype=torch.float64)
    operation = dist.P2POp(dist.isend if rank == 0 else dist.irecv, value, 1 - rank)
    for work in dist.batch_isend_irecv([operation]):
        work.wait()
    return value


def by_a_broadcast(rank: int) -> Tensor:
    value = sent() if rank == 0 else torch.zeros(SHAPE, dtype=torch.float64)
    dist.broadcast(value, 0)
    return value


def by_an_all_gather(rank: int) -> Tensor:
    parts = [torch.empty(SHAPE, dtype=torch.float64) for _ in range(2)]
    dist.all_gather(parts, sent() if rank == 0 else torch.ones(SHAPE, dtype=torch.float64))
    return parts[0]


def after_a_gathering_into_memory_that_held_it(rank: int) -> Tensor:
    parts = [sent() for _ in range(2)]
    dist.all_gather(parts, torch.full(SHAPE, float(rank), dtype=torch.float64))
    return as_it_is(rank)


def from_ranks_that_have_the_same(rank: int) -> Tensor:
    parts = [torch.empty(SHAPE, dtype=torch.float64) for _ in range(2)]
    dist.all_gather(parts, sent())
    return parts[0]


def waited_for_by_a_future(rank: int) -> Tensor:
    value = sent() if rank == 0 else torch.zeros(SHAPE, dtype=torch.float64)
    dist.broadcast(value, 0, async_op=True).get_future().wait()
    return value


def computed_here(rank: int) -> Tensor:
    zeros = torch.zeros(SHAPE, dtype=torch.float64)
    (dist.send if rank == 0 else dist.recv)(zeros, 1 - rank)
    return sent()


def its_own_part(rank: int) -> Tensor:
    parts = [torch.empty(SHAPE, dtype=torch.float64) for _ in range(2)]
    dist.all_gather(parts, torch.ones(SHAPE, dtype=torch.float64) if rank == 0 else sent())
    return parts[1]


def its_own_part_in_one_tensor(rank: int) -> Tensor:
    whole = torch.empty(2 * SHAPE[0], SHAPE[1], dtype=torch.float64)
    dist.all_gather_into_tensor(whole, torch.ones(SHAPE, dtype=torch.float64) if rank == 0 else sent())
    return whole[SHAPE[0] :]


def its_own_summand(rank: int) -> Tensor:
    value = sent() if rank == 1 else torch.zeros(SHAPE, dtype=torch.float64)
    dist.all_reduce(value)
    return value


def of_the_step_before(rank: int) -> Tensor:
    return sent()


def _found(body: Callable[[int], Tensor]) -> tuple[Arrived, ...]:
    recorder = TrafficRecorder(given=dist.group.WORLD)
    with recorder.recording():
        recorder.begin(0)
        if body is of_the_step_before:
            as_it_is(dist.get_rank())
            recorder.begin(1)
        value = body(dist.get_rank())
        recorder.passed(1, 0, (value,), value)
    return recorder.traffic().arrived


CAME = [
    as_it_is,
    behind_a_head,
    in_pieces,
    in_a_batch,
    by_a_broadcast,
    by_an_all_gather,
    after_a_gathering_into_memory_that_held_it,
    from_ranks_that_have_the_same,
    waited_for_by_a_future,
]


@pytest.mark.parametrize("body", CAME, ids=lambda body: body.__name__)
def test_what_came_is_found_however_it_came(body: Callable[[int], Tensor]) -> None:
    vector = run_on_ranks(_found, body, ranks=2)

    assert vector.ok, vector.describe()
    assert list(vector.values)[1] == (Arrived(0, 1, 0, (True,)),)


@pytest.mark.parametrize(
    "body",
    [computed_here, its_own_part, its_own_part_in_one_tensor, its_own_summand, of_the_step_before],
    ids=lambda b: b.__name__,
)
def test_what_a_rank_has_by_itself_did_not_come(body: Callable[[int], Tensor]) -> None:
    vector = run_on_ranks(_found, body, ranks=2)

    assert vector.ok, vector.describe()
    (found,) = list(vector.values)[1]
    assert found.tensors == (False,)


def test_every_tensor_among_the_inputs_is_looked_for() -> None:
    finder, (one, other) = ContentFinder(), torch.rand(2, 5)
    finder.begin(3)
    finder.brought(Carried([one]))
    finder.passed(2, 7, (one, [other, 1.0]))

    assert finder.found == [Arrived(3, 2, 7, (True, False))]


def test_bytes_are_those_of_the_elements_in_order() -> None:
    whole = torch.arange(6, dtype=torch.int16).reshape(2, 3)

    assert bytes_of(whole.t()) == bytes_of(whole.t().contiguous())
    assert bytes_of(torch.empty(0)) == bytes_of(torch.empty(3, device="meta")) == b""
    assert len(bytes_of(torch.zeros((), dtype=torch.bfloat16))) == 2
