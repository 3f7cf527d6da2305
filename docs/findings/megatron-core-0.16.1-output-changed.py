"""A stage whose output or input changes, or that raises, after the first step: an abort, foreign bytes, waiting.

What: in the second step stage 0 (a) hands on a tensor whose last dimension is longer by one: the process of stage 1
  ends by SIGABRT, as it does when stage 0 is given a sample more; (b) hands on bfloat16 instead of float32: stage 1
  computes on the bytes read as float32, and the schedule returns on both ranks without an error; (c) hands on two
  tensors or raises in its forward, or is given integers: the error is raised on its own rank, and stage 1 waits until
  the group's time-out; (d) hands on None: no rank raises, nothing is sent, and both ranks wait. (A hook that makes a
  gradient longer is an error on its own rank, and the other one ends.)
Where: megatron-core 0.16.1, core/pipeline_parallel/p2p_communication.py, _communicate: receive buffers are made from
  `tensor_shape` (from seq_length, micro_batch_size and hidden_size) and `pipeline_dtype`; what the stage returns is
  sent as it is.
Why: nothing compares what is sent with the configuration, and the other ranks do not learn of an error. gloo ends the
  process when a message is longer than the buffer, and receives a shorter one without a word. With
  `variable_seq_lengths` the shape is sent before, the dtype is not.
Requirement: ERR-3, ERR-4, ERR-11, ERR-13, ERR-14; ERR-1 where another input is the cause.
Schedules: forward_backward_pipelining_without_interleaving, two stages or more.
Known: -
Possible fix: compare shape and dtype with the configuration before each send, which needs no communication.

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


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *size, device=None, **options):
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


def longer(x):
    return torch.cat([x, x[..., :1]], dim=-1)


def broken(x):
    raise RuntimeError("stage 0 is broken")


def hooked(x):
    x.register_hook(longer)
    return x


CHANGES = {  # what stage 0 makes of its output in the second step
    "longer": longer,
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "None": lambda x: None,
    "a second tensor": lambda x: (x, x),
    "raises": broken,
    "a longer gradient": hooked,
}
INPUTS = {  # what it is given in the second step
    "more samples": torch.full((1, 2, 2), 2.0),
    "integers": torch.full((1, 1, 2), 2),
}


class Stage(nn.Linear):
    """A linear map over [sequence, batch, hidden] that remembers its input, and changes its output when told."""

    change = None

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        x = x if self.received is None else self.received
        self.seen = x.detach().clone()
        y = super().forward(x)
        return y if self.change is None else self.change(y)


def run(rank, change):
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import p2p_communication, schedules
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

    p2p_communication.torch = schedules.torch = TorchWithoutCuda("torch")
    alone = [dist.new_group([r]) for r in range(WORLD)][rank]
    group = dist.new_group(list(range(WORLD)))
    config = TransformerConfig(
        num_layers=WORLD,
        num_attention_heads=1,
        hidden_size=2,
        pipeline_model_parallel_size=WORLD,
        pipeline_dtype=torch.float32,
    )
    stage = Stage(2, 2, bias=False)
    nn.init.eye_(stage.weight)
    stage.config, stage.model_type = config, ModelType.encoder_or_decoder

    def forward_step(data, model):
        return model(next(data)), lambda output: (output.sum(), {})

    def once(x):
        schedules.forward_backward_pipelining_without_interleaving(
            forward_step_func=forward_step,
            data_iterator=[iter([x])],
            model=[stage],
            num_microbatches=1,
            seq_length=1,
            micro_batch_size=1,
            forward_only=False,
            p2p_communicator=p2p_communication.P2PCommunicator(group, config),
            pg_collection=ProcessGroupCollection(
                pp=group, embd=None, pos_embd=None, tp=alone, cp=alone, dp_cp=alone
            ),
        )

    once(torch.ones(1, 1, 2))
    if rank == 0:
        stage.change = CHANGES.get(change)
    try:
        once(INPUTS.get(change, torch.full((1, 1, 2), 2.0)))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:60]}"
    if rank:
        first = stage.seen.flatten()[0].item()  # what follows was never written
        return f"no error; the first number that stage 1 was given is {first}; expected 2.0 or an error"
    return "no error"


def worker(rank, change, folder):
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
    Path(folder, f"{rank}.txt").write_text(run(rank, change))
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
    for change in sys.argv[1:] or (*CHANGES, *INPUTS):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, change, folder)) for r in range(WORLD)
            ]
            for process in processes:
                process.start()

            wait_for(processes, folder)
            for rank, process in enumerate(processes):
                if change in ("longer", "more samples") and rank == 0:
                    continue  # whose connection broke, or not yet
                print(f"{change}, rank {rank}: {told(rank, process, folder)}", flush=True)
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
