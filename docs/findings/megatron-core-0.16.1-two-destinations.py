"""A module with two outgoing modules gets the gradient of the second one alone.

What: an encoder hands its output to two modules. MultiModulePipelineCommunicator returns the gradient that the last of
  them sent for the sum of both: parameters of the encoder have wrong gradients, with right losses. With one outgoing
  module gradients are right.
Where: megatron-core 0.16.1, core/pipeline_parallel/multimodule_communicator.py, recv_backward and
  send_forward_recv_backward: gradients lie under the name of the module that sends the activation, and the next
  outgoing module's takes the place of the one before.
Why it is one: the topology maps a module to a list of outgoing modules, and RankModuleInfo's docstring says that a
  module may have several connections out of it, as it may have several into it, which are kept apart.
Requirement: none (pipelines of several modules are not claimed; near FWD-10).
Schedules: none in this release; the communicator is driven by hand, as in the engine's tests.
Known: no public thread found; the same lines are on the main branch of August 2026, whose 1F1B calls them.
Possible fix: add up what outgoing modules send.

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
from torch import nn

WORLD = 3
FACTORS = {"first": 1.0, "second": 10.0}  # the outgoing modules compute the factor times the sum
TOPOLOGIES = (
    {"encoder": ["first"], "first": []},
    {"encoder": ["first", "second"], "first": [], "second": []},
)


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


def encoder():
    made = nn.Linear(1, 1, bias=False)
    nn.init.constant_(made.weight, 2.0)
    return made


def expected(topology):
    model = encoder()
    sum(FACTORS[name] * model(torch.ones(1, 1, 1)).sum() for name in topology["encoder"]).backward()
    return model.weight.grad.item()


def run(rank, topology):
    """One microbatch; each module has one rank, in the order of the topology."""
    from megatron.core.hyper_comm_grid import HyperCommGrid
    from megatron.core.pipeline_parallel.multimodule_communicator import MultiModulePipelineCommunicator
    from megatron.core.transformer import TransformerConfig

    grids = {}
    for first, name in enumerate(topology):
        grids[name] = HyperCommGrid([1, 1, 1, 1], ["tp", "cp", "pp", "dp"], rank_offset=first, backend="gloo")
        grids[name].create_pg("pp")
    config = TransformerConfig(
        num_layers=1, num_attention_heads=1, hidden_size=1, pipeline_dtype=torch.float32
    )
    communicator = MultiModulePipelineCommunicator(
        grids, topology, config, dim_mapping={"s": 0, "b": 1, "h": 2}
    )
    if rank == 0:
        model = encoder()
        output = model(torch.ones(1, 1, 1))
        communicator.send_forward({"encoder": output})
        output.backward(communicator.recv_backward()["encoder"])
        return (
            f"encoder -> {' and '.join(topology['encoder'])}: gradient expected {expected(topology)}, "
            f"actual {model.weight.grad.item()}\n"
        )
    if rank < len(topology):
        received = communicator.recv_forward()["encoder"]
        received.retain_grad()
        (FACTORS[list(topology)[rank]] * received.sum()).backward()
        communicator.send_backward({"encoder": received.grad})
    return ""


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
    said = "".join(run(rank, topology) for topology in TOPOLOGIES)
    dist.barrier()
    Path(folder, f"{rank}.txt").write_text(said)
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
            process.kill()
        path = Path(folder, "0.txt")
        if not path.exists():
            sys.exit("inconclusive: no result")
        print(path.read_text(), end="")


if __name__ == "__main__":
    main()
