"""Two pipeline ranks talk on the default group: others' messages there, and an error's leftovers, make both wait.

What: a pipeline of two ranks, two stages on each, is given a process group of its own. (a) Rank 1 has sent rank 0 a
  tensor on the default group, which rank 0 receives after the training step: it is taken for an activation, and both
  ranks wait for ever. (b) Stage 2 raises; rank 0 destroys the pipeline's group, which ends rank 1's step, too. A second
  pipeline with new stages, a new communicator and a new group waits for ever on both ranks. On the given group, as
  the engine goes by itself under the backend ucc, both come out right.
Where: megatron-core 0.16.1, core/pipeline_parallel/p2p_communication.py, _p2p_ops: where the group has two members, one
  of the two directions goes over torch.distributed.group.WORLD. Every schedule whose `batch_p2p_comm` is off goes that
  way.
Why: two directions on one communicator would not overlap. Whatever else the same two ranks exchange on the default
  group is taken for the pipeline's; and it is not destroyed with the pipeline's group, so that sends which nobody
  waited for stay in its connections.
Requirement: COM-2; ERR-11 by (b).
Schedules: forward_backward_pipelining_with_interleaving on two ranks; three or more use the given group.
Known: a comment in the source says that the default group is used, and that this is compatible. Near
  https://github.com/NVIDIA/Megatron-LM/issues/620 (closed: shapes were sent over the default group, which was a hang).
Possible fix: let P2PCommunicator make a second group of the pipeline's two ranks.

The engine calls the CUDA runtime for a device and a synchronisation; here these mean the CPU.
"""

import importlib
import itertools
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

WORLD, STAGES = 2, 2  # ranks, and stages on each


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *size, device=None, **options):
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


class AsUnderUcc(ModuleType):
    """What the engine sees as torch.distributed where it is to use the given group."""

    def __getattr__(self, name):
        return getattr(dist, name)

    def get_backend(self, group=None):
        return "ucc"


class Stage(nn.Linear):
    """Hands on what it is given, and remembers it; or fails."""

    def __init__(self, *, fails):
        super().__init__(2, 2, bias=False)
        nn.init.eye_(self.weight)
        self.given, self.fails = [], fails

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        x = x if self.received is None else self.received
        if self.fails:
            time.sleep(1)  # rank 1 goes on until it waits
            raise RuntimeError("stage 2 is broken")
        self.given.append(x.flatten()[0].item())
        return super().forward(x)


def train(rank, numbers, *, fails=False):
    """One step of a pipeline with stages, a communicator and a group of its own, which is destroyed in the end."""
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
        hidden_size=2,
        pipeline_model_parallel_size=WORLD,
        virtual_pipeline_model_parallel_size=STAGES,
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=True,
        batch_p2p_comm=False,
    )
    stages = [Stage(fails=False), Stage(fails=fails)]
    for stage in stages:
        stage.config, stage.model_type = config, ModelType.encoder_or_decoder

    def forward_step(data, model):
        return model(next(data)), lambda output: (output.sum(), {})

    try:
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=forward_step,
            data_iterator=[iter([torch.full((1, 1, 2), n) for n in numbers]) for _ in stages],
            model=stages,
            num_microbatches=len(numbers),
            seq_length=1,
            micro_batch_size=1,
            forward_only=False,
            p2p_communicator=p2p_communication.P2PCommunicator(group, config),
            pg_collection=ProcessGroupCollection(
                pp=group, embd=None, pos_embd=None, tp=alone, cp=alone, dp_cp=alone
            ),
        )
    except RuntimeError as error:
        return str(error) if fails else type(error).__name__
    finally:
        dist.destroy_process_group(group)
    return f"stages {rank} and {rank + 2} were given {[stage.given for stage in stages]}"


def own_message(rank):
    """Rank 1 sends rank 0 a tensor on the default group; rank 0 receives it after the step."""
    sent = dist.isend(torch.full((1, 1, 2), 100.0), dst=0) if rank else None
    said = train(rank, [1.0, 2.0])
    if sent is None:
        dist.recv(torch.zeros(1, 1, 2), src=1)
    else:
        sent.wait()
    return said


def after_an_error(rank):
    """Stage 2 fails, on rank 0; rank 1's step ends when rank 0 destroys the group; then everything is made anew."""
    first = train(rank, [1.0, 2.0], fails=rank == 0)
    dist.barrier()
    Path(f"{rank}.first").write_text(first)
    return train(rank, [3.0, 4.0])


CASES = {"own message": own_message, "after an error": after_an_error}


def worker(rank, case, on, folder):
    warnings.simplefilter("ignore")
    if on == "given":
        TorchWithoutCuda.distributed = AsUnderUcc("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    for part in ("pipeline_parallel.schedules", "transformer"):
        importlib.import_module(f"megatron.core.{part}")  # takes its time
    os.chdir(folder)
    Path(folder, f"{rank}.started").touch()
    Path(folder, f"{rank}.txt").write_text(CASES[case](rank))
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def told(rank, process, folder):
    path, first = Path(folder, f"{rank}.txt"), Path(folder, f"{rank}.first")
    before = f"{first.read_text()}; then " if first.exists() else ""
    if path.exists():
        return before + path.read_text()
    if process.exitcode is None:
        return f"{before}still waiting"
    return f"{before}no result; exit code {process.exitcode}"


def wait_for(processes, folder):
    """Until all have ended, or for 20 s after the start: who has not ended then is taken to wait for ever."""
    while not all(Path(folder, f"{rank}.started").exists() for rank in range(WORLD)):
        time.sleep(0.1)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if all(Path(folder, f"{r}.txt").exists() or not p.is_alive() for r, p in enumerate(processes)):
            return
        time.sleep(0.1)


def main():
    for case, on in itertools.product(sys.argv[1:] or CASES, ("default", "given")):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, case, on, folder))
                for r in range(WORLD)
            ]
            for process in processes:
                process.start()
            wait_for(processes, folder)
            for rank, process in enumerate(processes):
                print(f"{case}, {on} group, rank {rank}: {told(rank, process, folder)}", flush=True)
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
