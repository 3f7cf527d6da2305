"""Whether ranks can exchange tensors of their devices is found out before a task blames an implementation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from pipeconform.ranks.connecting import NotConnectedError, connect
from pipeconform.ranks.on_ranks import run_on_ranks
from tests.facts import tells


def _connected() -> None:
    connect(torch.device("cpu"), backend="gloo")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_works_passes(ranks: int) -> None:
    vector = run_on_ranks(_connected, ranks=ranks)
    assert vector.ok, vector.describe()


def _told(broken: Callable[[pytest.MonkeyPatch], None]) -> str:
    def body() -> str:
        with pytest.MonkeyPatch.context() as patch:
            broken(patch)
            with pytest.raises(NotConnectedError) as found:
                _connected()
        return str(found.value)

    vector = run_on_ranks(body, ranks=2)
    assert vector.ok, vector.describe()
    return str(vector.values[0])


def test_a_wrong_sum_and_a_number_that_never_came_are_told() -> None:
    def lost(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(dist, "all_reduce", lambda value: None)
        patch.setattr(dist, "batch_isend_irecv", lambda operations: [])

    told = _told(lost)
    assert tells(
        told, "gloo", "cpu", "sum of 1 to 2", "as 1", "2 from the rank before", "as 0", "--device cpu"
    )


def test_what_the_backend_raises_is_told() -> None:
    def refuses(patch: pytest.MonkeyPatch) -> None:
        def refused(value: torch.Tensor) -> None:
            raise RuntimeError("no backend for device type")

        patch.setattr(dist, "all_reduce", refused)

    assert "do not work together: no backend for device type. Gloo" in _told(refuses)
