"""What is measured on the ranks of a device; every function returns plain numbers of its own rank."""

from __future__ import annotations

import os
import pickle
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIZES = (4, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
"""Bytes of a message."""
ROUNDS = 20
BLOCKS = 5
REPETITIONS = 5
DTYPES = ("float64", "float32", "bfloat16", "float16")


def latency() -> dict[str, dict[int, float]]:
    """Microseconds for a message there, half of there and back, by way and bytes: the median of five blocks."""
    import torch
    import torch.distributed as dist

    device, rank = _device(), dist.get_rank()
    other = 1 - rank

    def single(value: Any) -> None:
        for peer in (True, False) if rank == 0 else (False, True):
            (dist.send if peer else dist.recv)(value, other)

    def batch(value: Any) -> None:
        for peer in (True, False) if rank == 0 else (False, True):
            operation = dist.P2POp(dist.isend if peer else dist.irecv, value, other)
            for work in dist.batch_isend_irecv([operation]):
                work.wait()

    found: dict[str, dict[int, float]] = {}
    for name, exchange in (("send and recv", single), ("batch_isend_irecv", batch)):
        found[name] = {}
        for size in SIZES:
            value = torch.zeros(size, dtype=torch.uint8, device=device)
            exchange(value)
            blocks = []
            for _ in range(BLOCKS):
                _finish(device)
                begun = time.perf_counter()
                for _ in range(ROUNDS):
                    exchange(value)
                _finish(device)
                blocks.append((time.perf_counter() - begun) / ROUNDS / 2 * 1e6)
            found[name][size] = statistics.median(blocks)
    return found


def communicators() -> dict[str, dict[str, float]]:
    """Milliseconds that a new group takes: until it is there, its first and second sum, and its end."""
    import torch
    import torch.distributed as dist

    device, ranks = _device(), list(range(dist.get_world_size()))
    value = torch.ones(1, device=device)
    dist.all_reduce(value)
    found = {}
    eager = (
        {} if device.type == "cpu" else {"with device_id": {"device_id": device}}
    )  # gloo takes none for the CPU
    for name, options in {"without device_id": {}, **eager}.items():
        seen: dict[str, list[float]] = {"new_group": [], "first sum": [], "second sum": [], "end": []}
        for _ in range(REPETITIONS):
            dist.barrier()
            group: list[Any] = []

            def make(group: list[Any] = group, options: dict[str, Any] = options) -> None:
                group.append(dist.new_group(ranks, **options))

            def add(group: list[Any] = group) -> None:
                dist.all_reduce(value, group=group[0])
                _finish(device)

            def end(group: list[Any] = group) -> None:
                dist.destroy_process_group(group[0])

            for step, call in zip(seen, (make, add, add, end), strict=True):
                begun = time.perf_counter()
                call()
                seen[step].append((time.perf_counter() - begun) * 1e3)
        found[name] = {step: statistics.median(times) for step, times in seen.items()}
    return found


def memory() -> dict[str, dict[str, float | None]]:
    """MiB of the process and of the device that are in use, from moment to moment."""
    import torch
    import torch.distributed as dist

    device = _device()
    found = {"when the rank is ready": _in_use(device)}
    value = torch.ones(1, device=device)
    value.item()
    found["with a tensor"] = _in_use(device)
    group = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(value, group=group)
    _finish(device)
    found["with one group more, and a sum in it"] = _in_use(device)
    a = torch.ones(512, 512, device=device)
    (a @ a).sum().item()
    found["after a matrix product"] = _in_use(device)
    dist.destroy_process_group(group)
    found["when the group has ended"] = _in_use(device)
    return found


def bits(pinned: bool) -> dict[str, dict[str, float | str]]:
    """Per dtype the share of values whose bits are those of the first time, on this device and beside the CPU."""
    import torch

    device = _device()
    if not pinned:
        torch.use_deterministic_algorithms(False)
    found: dict[str, dict[str, float | str]] = {}
    try:
        for name in DTYPES:
            try:
                first, *others = (_results(device, getattr(torch, name)) for _ in range(REPETITIONS))
            except (RuntimeError, TypeError, NotImplementedError) as error:
                found[name] = {"error": str(error).partition("\n")[0][:200]}
                continue
            on_cpu = _results(torch.device("cpu"), getattr(torch, name))
            found[name] = {
                "again": min(_share(first, one) for one in others),
                "CPU": _share(first, on_cpu),
                "values": float(sum(one.numel() for one in first)),
            }
    finally:
        if not pinned:
            torch.use_deterministic_algorithms(True, warn_only=True)
    return found


def hang(folder: str, after: float) -> None:
    """Wait for the other rank, which waits for this one; write what the flight recorder holds `after` seconds."""
    import torch
    import torch.distributed as dist

    device, rank = _device(), dist.get_rank()
    value = torch.ones(1, device=device)
    dist.all_reduce(value)
    threading.Thread(target=_dump, args=(Path(folder), rank, after), daemon=True).start()
    dist.recv(value, 1 - rank)
    value.item()


def _dump(folder: Path, rank: int, after: float) -> None:
    import torch

    time.sleep(after)
    functions = torch._C._distributed_c10d
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        source: Callable[..., bytes] | None = getattr(functions, name, None)
        if source is not None:
            data = source(includeCollectives=True, includeStackTraces=False, onlyActive=False)
            pickle.loads(data)  # what cannot be read is no fixture
            part = folder / f"flight-{rank}.part"
            part.write_bytes(data)
            part.replace(folder / f"flight-{rank}.pickle")
            return


def _results(device: Any, dtype: Any) -> list[Any]:
    """Outputs and gradients of a small language model, all made of the same numbers."""
    import torch
    from torch import nn
    from torch.nn import functional

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 64, (32, 24), generator=generator)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(64, 64), layer, nn.LayerNorm(64), nn.Linear(64, 64))
    model = model.to(dtype).to(device)
    output = model(tokens.to(device))
    functional.cross_entropy(output.flatten(0, 1), tokens.flatten().to(device)).backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    return [one.detach().to("cpu") for one in (output, *gradients)]


def _share(first: list[Any], second: list[Any]) -> float:
    import torch

    same = total = 0
    for one, other in zip(first, second, strict=True):
        kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[one.element_size()]
        same += int((one.contiguous().view(kind) == other.contiguous().view(kind)).sum())
        total += one.numel()
    return same / total


def _in_use(device: Any) -> dict[str, float | None]:
    import torch

    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in status)
    found: dict[str, float | None] = {"process, its own": int(fields["RssAnon"].split()[0]) / 1024}
    module = torch.get_device_module(device)
    try:
        free, total = module.mem_get_info(device)
        found["whole device"] = (total - free) / 2**20
    except (AttributeError, RuntimeError):
        found["whole device"] = None
    try:
        found["torch's tensors"] = module.memory_allocated(device) / 2**20
    except (AttributeError, RuntimeError):
        found["torch's tensors"] = None
    return found


def _device() -> Any:
    import torch

    kind = next(_kinds())
    return (
        torch.device(kind)
        if kind == "cpu"
        else torch.device(kind, torch.get_device_module(kind).current_device())
    )


def _kinds() -> Iterator[str]:
    import torch

    named = os.environ.get("MEASURED_DEVICE")
    if named:
        yield named
    found = torch.accelerator.current_accelerator()
    yield "cpu" if found is None else found.type


def _finish(device: Any) -> None:
    import torch

    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
