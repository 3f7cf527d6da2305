"""Small trials of a device and its backend, each on the ranks of a fresh group: what works, before anything is judged.

A trial raises what goes wrong, and returns a few words otherwise. `doctor --device` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pipeconform.ranks.rank import RankContext

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["TASK", "TRIALS", "run_trial"]

TASK = f"{__name__}:run_trial"
_REPETITIONS = 3
_SIZE = 65  # odd, so that kernels have remainders


def run_trial(context: RankContext, payload: bytes) -> bytes:
    """Run the trial that `payload` names; return what it says."""
    import torch

    return TRIALS[payload.decode()](torch.device(context.device)).encode()


def _transfer(device: torch.device) -> str:
    import torch

    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    for kind in kinds:
        value = torch.arange(_SIZE).to(kind)
        if not torch.equal(value.to(device).to("cpu"), value):
            raise ValueError(f"a tensor of {kind} came back from {device} with another value")
    return f"{len(kinds)} dtypes to the device and back"


def _collectives(device: torch.device) -> str:
    import torch
    import torch.distributed as dist

    size = dist.get_world_size()
    group = dist.new_group(list(range(size)))
    value = torch.full((_SIZE,), float(dist.get_rank()), device=device)
    dist.broadcast(value, src=0, group=group)
    parts = [torch.empty_like(value) for _ in range(size)]
    dist.all_gather(parts, value + dist.get_rank(), group=group)
    dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
    dist.barrier(group)
    if value.abs().max().item() or [one[0].item() for one in parts] != [float(n) for n in range(size)]:
        raise ValueError("a broadcast, all-gather or all-reduce in a group of its own gave wrong numbers")
    dist.destroy_process_group(group)
    return "broadcast, all-gather, all-reduce and barrier in a new group"


def _coalescing(device: torch.device) -> str:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    coalesces = group._get_backend(device).supports_coalescing
    said = "coalesced: one work for a batch" if coalesces else "not coalesced: a work for every operation"
    if size == 1:
        return said
    sent = [torch.full((_SIZE,), float(10 * rank + n), device=device) for n in range(2)]
    received = [torch.zeros(_SIZE, device=device) for _ in range(2)]
    after, before = (rank + 1) % size, (rank - 1) % size
    works = dist.batch_isend_irecv(
        [
            *(dist.P2POp(dist.isend, one, after) for one in sent),
            *(dist.P2POp(dist.irecv, one, before) for one in received),
        ]
    )
    for work in works:
        work.wait()
    if [one[-1].item() for one in received] != [10.0 * before, 10.0 * before + 1]:
        raise ValueError("a batch of two sends and two receives brought wrong numbers")
    return said


def _abort(device: torch.device) -> str:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(size)))
    value = torch.ones(1, device=device)
    dist.all_reduce(value, group=group)
    # the first message makes the pair's communicator, which takes both; the second is never sent, and a group that
    # waits for what it was given would wait here
    if size > 1 and rank == 0:
        dist.recv(value, 1, group=group)
        dist.irecv(value, 1, group=group)
    elif rank == 1:
        dist.send(value, 0, group=group)
    dist.distributed_c10d._abort_process_group(group)
    return "a group with a pending receive can be ended"


def _float64(device: torch.device) -> str:
    import torch

    one = torch.tensor([1.0, 2.0**-40], dtype=torch.float64, device=device).sum().item()
    if one != 1.0 + 2.0**-40:
        raise ValueError("a sum in float64 has the precision of a smaller dtype")
    return "computes in float64"


def _operators(device: torch.device) -> Mapping[str, Callable[[], Tensor]]:
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(_SIZE, _SIZE, generator=generator).to(device) for _ in range(2))
    index = torch.randint(0, 8, (_SIZE,), generator=generator).to(device)
    table = torch.randn(8, _SIZE, generator=generator).to(device)

    def embedding_backward() -> Tensor:
        weight = table.clone().requires_grad_()
        torch.autograd.backward((functional.embedding(index, weight) * a).sum())
        assert weight.grad is not None
        return weight.grad

    return {
        "matmul": lambda: a @ b,
        "addmm": lambda: torch.addmm(b[0], a, b),
        "sum": lambda: a.sum(dim=0),
        "mean": a.mean,
        "softmax": lambda: a.softmax(dim=-1),
        "layer_norm": lambda: functional.layer_norm(a, (_SIZE,)),
        "gelu": lambda: functional.gelu(a),
        "cross_entropy": lambda: functional.cross_entropy(a, index),
        "index_add": lambda: torch.zeros_like(table).index_add_(0, index, a),
        "embedding's backward": embedding_backward,
    }


def _determinism(device: torch.device) -> str:
    import torch

    wrong = []
    operators = _operators(device)
    for name, compute in operators.items():
        first, *others = (compute().detach().to("cpu") for _ in range(_REPETITIONS))
        if not all(torch.equal(first, one) for one in others):
            wrong.append(name)
    if wrong:
        raise ValueError(f"{', '.join(wrong)} gave other bits when repeated")
    return f"{len(operators)} operators give the same bits {_REPETITIONS} times"


def _generator(device: torch.device) -> str:
    import torch

    module: Any = torch.get_device_module(device)
    torch.manual_seed(7)
    state = module.get_rng_state(device)
    first = torch.rand(_SIZE, device=device).to("cpu")
    module.set_rng_state(state, device)
    if not torch.equal(torch.rand(_SIZE, device=device).to("cpu"), first):
        raise ValueError("the generator draws other numbers after its state was set back")
    return "its state can be read and set"


def _modules(device: torch.device) -> str:
    from torch import nn

    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    first.bias.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    nn.Sequential(first, second).to(device)
    if second.weight is not first.weight or not first.bias._backward_hooks:
        raise ValueError("Module.to makes new parameters: a shared one becomes two, and hooks are lost")
    return "Module.to keeps shared parameters and hooks"


TRIALS: Mapping[str, Callable[[torch.device], str]] = MappingProxyType(
    {
        "transfer": _transfer,
        "modules": _modules,
        "collectives": _collectives,
        "batches": _coalescing,
        "generator": _generator,
        "determinism": _determinism,
        "float64": _float64,
        "abort": _abort,  # the last: what it leaves behind must not be another's fault
    }
)
"""By name, in the order in which they are run."""
