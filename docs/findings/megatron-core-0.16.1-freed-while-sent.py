"""With deallocate_pipeline_outputs an activation is freed while it is being sent: the next stage is given other memory.

What: a training step of the interleaved schedule, with overlap_p2p_comm and deallocate_pipeline_outputs, both as
  Megatron-LM sets them for it. Rank 0 begins to send an output, frees it at once, and computes the next one in the same
  memory. Where rank 1 receives a moment later, it is given what is in that memory then: another microbatch's
  activation, or anything. No error.
Where: megatron-core 0.16.1, core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving: lines
  1513 to 1522 (warm-up) and 1600 (before the next forward) deallocate the output of the send that has just been begun;
  what is waited for there is the one before.
Why: torch.distributed.isend forbids to change a tensor before the send is waited for; `out.data = ...` gives its memory
  back.
Requirement: FWD-1, SCH-1 and most others; by chance, which decides what is in the memory.
Schedules: forward_backward_pipelining_with_interleaving with overlap_p2p_comm=True.
Known: https://github.com/NVIDIA/Megatron-LM/pull/4047 (of March 2026, merged, in no release so far: NaN of
  a run on GB200; it says that no unit test could be made).
Possible fix: as there, wait for the send before its output is deallocated.

The engine calls the CUDA runtime for a device and a synchronisation; here these mean the CPU.
"""

import importlib
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, STAGES, M, STEPS = 2, 2, 4, 4  # ranks, stages on each, microbatches, steps
WIDTH = 256


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *size, device=None, **options):
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


class Stage(nn.Linear):
    """The identity over [sequence, batch, hidden]; it remembers the first number of what it is given."""

    def __init__(self, index):
        super().__init__(WIDTH, WIDTH, bias=False)
        nn.init.eye_(self.weight)
        self.index, self.seen = index, []

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        x = x if self.received is None else self.received
        self.seen.append(x.flatten()[0].item())
        return super().forward(x)


def run(rank, *, freed):
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import p2p_communication, schedules
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

    p2p_communication.torch = schedules.torch = TorchWithoutCuda("torch")
    alone = [dist.new_group([r]) for r in range(WORLD)][rank]
    group = dist.new_group(list(range(WORLD)))
    config = TransformerConfig(
        num_layers=WORLD * STAGES,
        num_attention_heads=1,
        hidden_size=WIDTH,
        pipeline_model_parallel_size=WORLD,
        virtual_pipeline_model_parallel_size=STAGES,
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=True,
        batch_p2p_comm=False,
        deallocate_pipeline_outputs=freed,
    )
    stages = [Stage(s * WORLD + rank) for s in range(STAGES)]
    for stage in stages:
        stage.config, stage.model_type = config, ModelType.encoder_or_decoder
    inputs = [torch.full((WIDTH, 1, WIDTH), float(k + 1)) for k in range(M)]

    def forward_step(data, model):
        return model(next(data)), lambda output: (output.mean(), {})

    def step():
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=forward_step,
            data_iterator=[iter(inputs) for _ in stages],
            model=stages,
            num_microbatches=M,
            seq_length=WIDTH,
            micro_batch_size=1,
            forward_only=False,
            p2p_communicator=p2p_communication.P2PCommunicator(group, config),
            pg_collection=ProcessGroupCollection(
                pp=group, embd=None, pos_embd=None, tp=alone, cp=alone, dp_cp=alone
            ),
        )

    for _ in range(STEPS):
        dist.barrier()
        if rank:
            time.sleep(0.2)  # any delay of a receiver: rank 0 has begun to send, and goes on
        step()
    right = [float(k + 1) for k in range(M)] * STEPS
    return all(stage.seen == right for stage in stages)


def worker(rank, freed, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    importlib.import_module("megatron.core.pipeline_parallel.schedules")  # takes its time
    dist.barrier()
    Path(folder, f"{rank}.txt").write_text(str(run(rank, freed=freed)))
    dist.barrier()
    os._exit(0)


def main():
    for freed in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, freed, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=120)
                process.kill()
            paths = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
            if not all(path.exists() for path in paths):
                sys.exit("inconclusive: a rank gave no result")
            right = all(path.read_text() == "True" for path in paths)
            told = "as expected" if right else "others"
            print(f"deallocate_pipeline_outputs={freed}: numbers that the stages were given: {told}")


if __name__ == "__main__":
    main()
