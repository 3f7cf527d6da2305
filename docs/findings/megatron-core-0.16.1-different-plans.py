"""Ranks that were told different plans, or different shapes: a rank that waits for ever, or a process that aborts.

What: of two ranks one is told of another plan. (a) One microbatch instead of two: it returns without an error, and the
  other waits for a gradient that nobody computes. (b) The whole batch of four in one microbatch, where the other
  splits it into two: the receiving process ends by SIGABRT. (c) Two stages per rank, where the other has one: it
  takes the interleaved schedule, and both wait. (d) A hidden size of 3 for what crosses the boundary, instead of 2, or
  float64 instead of float32: the larger buffer is filled in part, the stage raises on that rank alone, and the other
  waits. (e) bfloat16 instead of float32: the buffer is smaller, and the process ends by SIGABRT.
Where: megatron-core 0.16.1, core/pipeline_parallel/schedules.py: every rank counts its own messages from
  `num_microbatches` and len(model); core/pipeline_parallel/p2p_communication.py, _communicate: receive buffers are
  made from this rank's `seq_length`, `micro_batch_size`, `hidden_size` and `pipeline_dtype`.
Why: nothing compares the numbers of two ranks, and nobody tells the other ranks of an error. gloo ends the process when
  a message is longer than the buffer, and receives a shorter one without a word.
Requirement: ERR-9, ERR-11 and ERR-13 by (a) to (c); ERR-8 by (d) and (e).
Schedules: forward_backward_pipelining_without_interleaving, and with_interleaving in (c); two ranks or more.
Known: they are documented as arguments of a function that is called on every rank; that they must be equal on all is
  not said, nor what happens otherwise.
Possible fix: exchange them over the pipeline's group in the first call, or when the communicator is made.

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

WORLD = 2
USUAL = {"num_microbatches": 2, "samples": 2, "num_stages": 1, "hidden": 2, "dtype": torch.float32}
PLANS = {  # what one rank is told otherwise
    "a microbatch less": (1, {"num_microbatches": 1}),
    "one large microbatch": (0, {"num_microbatches": 1, "samples": 4}),
    "two stages": (1, {"num_stages": 2}),
    "a larger hidden size": (1, {"hidden": 3}),
    "float64": (1, {"dtype": torch.float64}),
    "bfloat16": (1, {"dtype": torch.bfloat16}),
}


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *size, device=None, **options):
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


class Stage(nn.Linear):
    """A linear map over [sequence, batch, hidden]."""

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        return super().forward(x if self.received is None else self.received)


def run(rank, plan):
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import p2p_communication, schedules
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

    whose, otherwise = PLANS[plan]
    told = USUAL | (otherwise if rank == whose else {})
    num_microbatches, samples, num_stages = told["num_microbatches"], told["samples"], told["num_stages"]
    p2p_communication.torch = schedules.torch = TorchWithoutCuda("torch")
    alone = [dist.new_group([r]) for r in range(WORLD)][rank]
    group = dist.new_group(list(range(WORLD)))
    config = TransformerConfig(
        num_layers=WORLD * num_stages,
        num_attention_heads=1,
        hidden_size=told["hidden"],
        pipeline_model_parallel_size=WORLD,
        virtual_pipeline_model_parallel_size=num_stages if num_stages > 1 else None,
        pipeline_dtype=told["dtype"],
        overlap_p2p_comm=num_stages > 1,
        batch_p2p_comm=num_stages == 1,
    )
    stages = [Stage(2, 2, bias=False) for _ in range(num_stages)]
    for stage in stages:
        stage.config, stage.model_type = config, ModelType.encoder_or_decoder
    batch = torch.ones(1, num_microbatches * samples, 2)

    def forward_step(data, model):
        return model(next(data)), lambda output: (output.sum(), {})

    try:
        how = "with_interleaving" if num_stages > 1 else "without_interleaving"
        getattr(schedules, f"forward_backward_pipelining_{how}")(
            forward_step_func=forward_step,
            data_iterator=[iter(batch.split(samples, dim=1)) for _ in stages],
            model=stages,
            num_microbatches=num_microbatches,
            seq_length=1,
            micro_batch_size=samples,
            forward_only=False,
            p2p_communicator=p2p_communication.P2PCommunicator(group, config),
            pg_collection=ProcessGroupCollection(
                pp=group, embd=None, pos_embd=None, tp=alone, cp=alone, dp_cp=alone
            ),
        )
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:60]}"
    return "no error"


def worker(rank, plan, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    importlib.import_module("megatron.core.pipeline_parallel.schedules")  # takes its time

    Path(folder, f"{rank}.started").touch()
    Path(folder, f"{rank}.txt").write_text(run(rank, plan))
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def told(rank, process, folder):
    path = Path(folder, f"{rank}.txt")
    if path.exists():
        return path.read_text()
    if process.exitcode is None:
        return "still waiting"
    return f"no result; exit code {process.exitcode} (-6 is SIGABRT)"


def wait_for(processes, folder):
    """Until all have ended; 10 s after the first, or 20 s after the start, the others are taken to wait for ever."""

    def ended(rank):
        return Path(folder, f"{rank}.txt").exists() or not processes[rank].is_alive()

    ranks = range(WORLD)
    while not all(Path(folder, f"{rank}.started").exists() for rank in ranks):
        time.sleep(0.1)
    end = time.monotonic() + 20
    while not any(map(ended, ranks)) and time.monotonic() < end:
        time.sleep(0.1)
    end = time.monotonic() + 10
    while not all(map(ended, ranks)) and time.monotonic() < end:
        time.sleep(0.1)


def main():
    for plan in sys.argv[1:] or PLANS:
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, plan, folder)) for r in range(WORLD)
            ]
            for process in processes:
                process.start()

            wait_for(processes, folder)
            for rank, process in enumerate(processes):
                if plan in ("one large microbatch", "bfloat16") and rank == 0:
                    continue  # whose connection broke, or not yet
                print(
                    f"rank {PLANS[plan][0]} has {plan}; rank {rank}: {told(rank, process, folder)}",
                    flush=True,
                )
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
