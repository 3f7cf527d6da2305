"""On two ranks the interleaved schedule swaps activations and gradients, with the configuration that is the default.

What: a training step of the interleaved schedule on two pipeline ranks, with overlap_p2p_comm=False and
  batch_p2p_comm=True, the defaults of ModelParallelConfig. A stage is given the gradient of another microbatch as its
  input, and an activation as the gradient of its output. No error: losses and gradients are wrong. With
  variable_seq_lengths shapes are swapped likewise. On four ranks the same step is right.
Where: megatron-core 0.16.1, core/pipeline_parallel/p2p_communication.py, _batched_p2p_ops (lines 26 to 46) and
  _communicate_shapes, called by send_forward_backward_recv_forward_backward.
Why: on two ranks the one before and the one after are the same. Each rank puts its operations into a batch in the order
  "send to the one before, receive from it, send to the one after, receive from it". Messages between two ranks arrive
  in the order in which they are sent (with NCCL and with gloo), so that what one rank sends to the one before it
  is received by the other as what comes from the one before it.
Requirement: FWD-1, FWD-2, SCH-1, TRN-25 (`--impl megatron-batched`; `megatron` sets what Megatron-LM sets).
Schedules: forward_backward_pipelining_with_interleaving.
Known: https://github.com/NVIDIA/Megatron-LM/pull/5271 (closed, of June 2026; of shapes) and
  https://github.com/NVIDIA/Megatron-LM/pull/1495 (closed). Megatron-LM's own arguments refuse two ranks
  without overlap_p2p_comm; megatron-core, which other trainers use, does not.
Possible fix: refuse it in the schedule, too, or order the batch of every second rank the other way round.

The engine calls the CUDA runtime for a device and a synchronisation; here these mean the CPU.
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

STAGES, M, WIDTH = 2, 4, 4  # stages on each rank, microbatches, numbers in a sample
CASES = (  # ranks, and the configuration
    (2, {"overlap_p2p_comm": True, "batch_p2p_comm": False}),
    (2, {}),
    (4, {}),
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


def expected(num_stages):
    """The gradients of the same model in one piece."""
    model = nn.Sequential(*map(Stage, range(num_stages)))
    for x in inputs():
        (model(x).square().sum() / M).backward()
    return [stage.weight.grad for stage in model]


def stepped(rank, world, options):
    """The gradients of this rank's stages after a training step."""
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import p2p_communication, schedules
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

    p2p_communication.torch = schedules.torch = TorchWithoutCuda("torch")
    alone = [dist.new_group([r]) for r in range(world)][rank]
    group = dist.new_group(list(range(world)))
    config = TransformerConfig(
        num_layers=world * STAGES,
        num_attention_heads=1,
        hidden_size=WIDTH,
        pipeline_model_parallel_size=world,
        virtual_pipeline_model_parallel_size=STAGES,
        pipeline_dtype=torch.float32,
        **options,
    )
    stages = [Stage(s * world + rank) for s in range(STAGES)]
    for stage in stages:
        stage.config, stage.model_type = config, ModelType.encoder_or_decoder
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
    return {s * world + rank: stage.weight.grad for s, stage in enumerate(stages)}


def worker(rank, world, options, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    right = expected(world * STAGES)
    found = stepped(rank, world, options)
    torch.save(
        {s: torch.allclose(one, right[s], atol=1e-6) for s, one in found.items()}, f"{folder}/{rank}.pt"
    )
    dist.barrier()
    os._exit(0)


def main():
    for world, options in CASES:
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, world, options, folder)) for rank in range(world)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=120)
                process.kill()
            paths = [Path(folder, f"{rank}.pt") for rank in range(world)]
            if not all(path.exists() for path in paths):
                sys.exit("inconclusive: a rank gave no result")
            right = {s: one for path in paths for s, one in torch.load(path).items()}
            wrong = [str(s) for s, one in sorted(right.items()) if not one]
            told = f"wrong in stages {', '.join(wrong)}" if wrong else "as of the model in one piece"
            print(f"{world} ranks, {options or 'the default configuration'}: gradients {told}", flush=True)


if __name__ == "__main__":
    main()
