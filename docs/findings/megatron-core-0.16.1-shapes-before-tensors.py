"""With sequence lengths that vary, the interleaved schedule hangs on four ranks, with the default configuration.

What: a training step of the interleaved schedule on four pipeline ranks, two stages each, four microbatches, with
  variable_seq_lengths=True, and overlap_p2p_comm=False and batch_p2p_comm=True, the defaults of
  ModelParallelConfig. It never ends. The controls do: shapes that do not vary, and overlap_p2p_comm.
Where: megatron-core 0.16.1, core/pipeline_parallel/p2p_communication.py, _communicate (line 253), which calls
  _communicate_shapes (line 166) before it sends the tensors themselves.
Why: a call sends and receives shapes in one batch, waits for all of it, and then sends and receives tensors. Rank 2
  sends a shape to rank 1, and receives one from it, in one batch; rank 1 receives that shape in its next call only.
  Before that it waits in the call whose shape rank 2 has received, because it sends the tensor, too: rank 2 would
  receive it after its batch of shapes has ended. Without shapes both wait for single batches, which meet.
Promise: the documentation of ModelParallelConfig.variable_seq_lengths: "Support for variable sequence lengths across
  microbatches. Setting this communicates the size of tensors during pipeline parallelism communication".
Requirement: all that draw sizes which vary, on four ranks (`--impl megatron-batched`): TRN-22, COM-1 to COM-7.
Schedules: forward_backward_pipelining_with_interleaving.
Known: https://github.com/NVIDIA/Megatron-LM/issues/5100 (open, of June 2026: a deadlock from four stages on).
Possible fix: let one batch exchange all shapes and tensors whose sizes are known, or order shapes by rank as
  _p2p_ops does.

With gloo a send waits for its receive. Small messages of NCCL need not, and may hide it: that was not tried. The engine
calls the CUDA runtime for a device and a synchronisation; here these mean the CPU.
"""

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

STAGES, M, WIDTH = 2, 4, 4  # stages on each rank, microbatches, numbers in a sample
WORLD, PATIENCE = 4, 30  # ranks; seconds after which a step is said to hang
CASES = (
    {},
    {"variable_seq_lengths": True, "overlap_p2p_comm": True, "batch_p2p_comm": False},
    {"variable_seq_lengths": True},
)


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *size, device=None, **options):
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


class Stage(nn.Linear):
    """A linear map over [sequence, batch, hidden]."""

    def __init__(self, index):
        torch.manual_seed(index)
        super().__init__(WIDTH, WIDTH)
        self.received = None

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        return torch.tanh(super().forward(x if self.received is None else self.received))


def inputs():
    torch.manual_seed(100)
    return list(torch.randn(M, 1, 1, WIDTH))


def step(rank, options, folder):
    """A training step; returns once it has ended on this rank."""
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
        moe_token_dispatcher_type="alltoall",  # which the configuration wants with lengths that vary
        **options,
    )
    stages = [Stage(s * WORLD + rank) for s in range(STAGES)]
    for stage in stages:
        stage.config, stage.model_type = config, ModelType.encoder_or_decoder
    dist.barrier()
    Path(folder, f"begun {rank}").touch()
    schedules.forward_backward_pipelining_with_interleaving(
        forward_step_func=lambda data, model: (
            model(next(data)),
            lambda output: (output.square().sum(), {}),
        ),
        data_iterator=[iter(inputs()) for _ in stages],
        model=stages,
        num_microbatches=M,
        seq_length=1,
        micro_batch_size=1,
        forward_only=False,
        p2p_communicator=p2p_communication.P2PCommunicator(group, config),
        pg_collection=ProcessGroupCollection(
            pp=group, embd=None, pos_embd=None, tp=alone, cp=alone, dp_cp=alone
        ),
    )


def worker(rank, options, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    step(rank, options, folder)
    Path(folder, f"ended {rank}").touch()
    time.sleep(3600)  # a rank that left would be an error for those that still wait


def ended(folder, what):
    return all(Path(folder, f"{what} {rank}").exists() for rank in range(WORLD))


def waited(folder, what, seconds, processes):
    """Whether all ranks have said so within that time; ends the program if one has died."""
    until = time.monotonic() + seconds
    while not ended(folder, what) and time.monotonic() < until:
        if not all(process.is_alive() for process in processes):
            sys.exit("inconclusive: a rank died")
        time.sleep(0.1)
    return ended(folder, what)


def main():
    for options in CASES:
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, options, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            if not waited(folder, "begun", 120, processes):
                sys.exit("inconclusive: a rank did not begin")
            told = (
                "the step ended"
                if waited(folder, "ended", PATIENCE, processes)
                else f"no end after {PATIENCE} s"
            )
            for process in processes:
                process.kill()
                process.join()
            print(
                f"{options or 'the default configuration'}: {told}",
                flush=True,
            )


if __name__ == "__main__":
    main()
