"""What a rank does for a sharded case only: delay collectives, and train DDP beside the wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.contract.placing import placed
from pipeconform.observe.array import Array
from pipeconform.wrapper_tools.collectives import Collective, delayed
from pipeconform.wrappers.modules import batch_of, build, objective
from pipeconform.wrappers.sharded_modules import DELAY
from pipeconform.wrappers.special import LR

__all__ = ["EPS", "beside", "has_ddp_beside", "late", "optimizer_of"]

EPS = LR
"""Adam's epsilon; as large as the learning rate, so that no update is more sensitive to a gradient than SGD's."""

_LATE: dict[str, tuple[Collective, ...]] = {
    "reduction": ("reduce_scatter", "all_reduce"),
    "gathering": ("all_gather",),
}


def optimizer_of(case: WrapperCase, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """The optimizer that a case asks for.

    It updates tensor by tensor: on GPUs torch would by default update all in one operation, which takes no parameters
    of which some are distributed tensors and others are not.
    """
    if case.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=LR, eps=EPS, foreach=False)
    return torch.optim.SGD(parameters, lr=LR, foreach=False)


@contextmanager
def late(case: WrapperCase) -> Iterator[None]:
    """Delay the last rank's collectives if the case says so; all ranks must enter and leave the context."""
    with ExitStack() as stack:
        for what in _LATE.get(case.slow, ()):
            stack.enter_context(delayed(what, DELAY, ranks={case.ranks - 1}))
        yield


def has_ddp_beside(case: WrapperCase) -> bool:
    """Whether DDP can train the same case: it has no dtypes of its own, no experts and no delays."""
    options = case.options
    return (
        options.sharding is not None
        and case.module in ("blocks", "few", "partly")
        and options.param_dtype is None
        and options.reduce_dtype is None
        and not case.slow
        and not (case.special or case.deferred)
    )


def beside(case: WrapperCase, rank: int, *, device: str) -> dict[str, Array]:
    """Train the same module with DDP by the same steps and return its parameters; all ranks must call this."""
    wrapped = DistributedDataParallel(placed(build(case, rank=rank), device))
    optimizer = optimizer_of(case, wrapped.parameters())
    for index, step in enumerate(case.steps):
        optimizer.zero_grad()
        for number, one in enumerate(step.passes):
            batch = batch_of(case, rank=rank, step=index, index=number, forward=0).to(device)
            with nullcontext() if one.synchronises else wrapped.no_sync():
                loss = objective(case, [wrapped(batch)], [batch])
                loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: Array.of(p) for name, p in wrapped.module.named_parameters()}
