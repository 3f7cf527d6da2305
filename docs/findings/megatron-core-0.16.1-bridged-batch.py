"""Between modules of different replication, parts of a batch are joined along dimension 0, wherever the batch is.

What: BridgeCommunicator hands activations from a module to another one with more or fewer replicas; dim_mapping says
  which dimension is the batch. With the batch in dimension 1, as in [sequence, batch, hidden], recv_forward joins what
  two replicas sent along it. send_backward_recv_forward, which every microbatch but the first comes through, joins them
  along the sequence: twice the sequence and half of the batch, and no error. The gradients that recv_backward and
  send_forward_recv_backward return are joined along the sequence likewise, and do not fit the activation.
Where: megatron-core 0.16.1, core/pipeline_parallel/bridge_communicator.py: three of the four calls of torch.cat have
  dim=0 where recv_forward has the batch's dimension.
Why it is one: dim_mapping is an argument, whose example in MultiModulePipelineCommunicator's docstring,
  {'s': 0, 'h': 2, 'b': 1}, is the one that fails; the communicator's default is [batch, sequence, hidden].
Requirement: none (pipelines of several modules are not claimed).
Schedules: none in this release; the communicator is driven by hand, as in the engine's tests.
Known: no public thread found; mended on the main branch of August 2026.
Possible fix: join along the batch's dimension everywhere.

The engine asks for NCCL and a CUDA device; here these are gloo and the CPU.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 3
LAYOUTS = {
    "[batch, sequence, hidden]": {"b": 0, "s": 1, "h": 2},
    "[sequence, batch, hidden]": {"s": 0, "b": 1, "h": 2},
}


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu")

    def __getattr__(self, name):
        return getattr(torch, name)


class WithoutNccl(ModuleType):
    """What the engine sees as torch.distributed."""

    def __getattr__(self, name):
        return getattr(dist, name)

    def new_subgroups_by_enumeration(self, ranks, backend):
        return dist.new_subgroups_by_enumeration(ranks)


def grid(replicas, first):
    from megatron.core.hyper_comm_grid import HyperCommGrid

    return HyperCommGrid([1, 1, 1, replicas], ["tp", "cp", "pp", "dp"], rank_offset=first, backend="gloo")


def batch(layout, first, number):
    """`number` samples of three tokens: sample s has 10 s, 10 s + 1 and 10 s + 2."""
    samples = torch.tensor([[10.0 * s + t for t in range(3)] for s in range(first, first + number)])
    return (samples if layout["b"] == 0 else samples.T.contiguous()).unsqueeze(-1)


def fan_in(rank, layout):
    """Two replicas hand one sample each to one; the last rank says what it gets."""
    from megatron.core.pipeline_parallel.bridge_communicator import BridgeCommunicator

    bridge = BridgeCommunicator(grid(2, 0), grid(1, 2), dim_mapping=layout, comm_dtype=torch.float32)
    if rank < 2:
        bridge.send_forward(batch(layout, rank, 1))
        bridge.send_forward_recv_backward(batch(layout, rank, 1))
        return []
    received = bridge.recv_forward()
    return [
        ("recv_forward", received),
        ("send_backward_recv_forward", bridge.send_backward_recv_forward(received.detach())),
    ]


def fan_out(rank, layout):
    """One replica hands two samples to two, which hand them back as gradients; the first rank says what it gets."""
    from megatron.core.pipeline_parallel.bridge_communicator import BridgeCommunicator

    bridge = BridgeCommunicator(grid(1, 0), grid(2, 1), dim_mapping=layout, comm_dtype=torch.float32)
    if rank == 0:
        bridge.send_forward(batch(layout, 0, 2))
        gradient = bridge.send_forward_recv_backward(batch(layout, 0, 2))
        return [("send_forward_recv_backward", gradient), ("recv_backward", bridge.recv_backward())]
    received = bridge.recv_forward()
    again = bridge.send_backward_recv_forward(received.detach())
    bridge.send_backward(again.detach())
    return []


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=100),
    )
    from megatron.core.pipeline_parallel import bridge_communicator

    bridge_communicator.torch, bridge_communicator.dist = TorchWithoutCuda("torch"), WithoutNccl("dist")
    lines = []
    for words, layout in LAYOUTS.items():
        expected = batch(layout, 0, 2)
        for found in (fan_in(rank, layout), fan_out(rank, layout)):
            lines += [
                f"{words}, {name}: "
                + (
                    "right\n"
                    if torch.equal(tensor, expected)
                    else f"shape expected {list(expected.shape)}, actual {list(tensor.shape)}\n"
                )
                for name, tensor in found
            ]
    Path(folder, f"{rank}.txt").write_text("".join(lines))
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
