"""A training step under torch.no_grad(): nothing is trained, with the right loss; of two ranks, the first waits.

What: a step with `forward_only=False` is run with gradients switched off, as by a decorator that was written for
  evaluation. On one rank it returns the right loss, and no parameter has a gradient. On two ranks the last stage
  returns without having sent a gradient, and the first one waits for it until the group's time-out.
Where: megatron-core 0.16.1, core/pipeline_parallel/schedules.py, backward_step: a backward is left out if the stage's
  output needs no gradient.
Why: the condition is meant for an encoder whose microbatch has no image. That nothing at all has a gradient looks the
  same, and the gradient of the input is then None, which is not sent.
Requirement: ERR-20.
Schedules: forward_backward_no_pipelining, forward_backward_pipelining_without_interleaving.
Known: -
Possible fix: refuse `forward_only=False` where torch.is_grad_enabled() is false.

The engine calls the CUDA runtime for a device and a synchronisation; here these mean the CPU.
"""

import os
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


class TorchWithoutCuda(ModuleType):
    """What the engine sees as torch."""

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *size, device=None, **options):
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)


class Stage(nn.Linear):
    """A linear map over [sequence, batch, hidden]."""

    received = None

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        return super().forward(x if self.received is None else self.received)


def run(rank, ranks, mode):
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import p2p_communication, schedules
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer import TransformerConfig

    p2p_communication.torch = schedules.torch = TorchWithoutCuda("torch")
    alone = [dist.new_group([r]) for r in range(ranks)][rank]
    group = dist.new_group(list(range(ranks)))
    config = TransformerConfig(
        num_layers=ranks,
        num_attention_heads=1,
        hidden_size=2,
        pipeline_model_parallel_size=ranks,
        pipeline_dtype=torch.float32,
    )
    stage = Stage(2, 2, bias=False)
    nn.init.eye_(stage.weight)
    stage.config, stage.model_type = config, ModelType.encoder_or_decoder
    losses = []

    def forward_step(data, model):
        def loss(output):
            losses.append(output.sum().item())
            return output.sum(), {}

        return model(next(data)), loss

    several = ranks > 1
    step = (
        schedules.forward_backward_pipelining_without_interleaving
        if several
        else schedules.forward_backward_no_pipelining
    )
    with mode():
        step(
            forward_step_func=forward_step,
            data_iterator=[iter([torch.ones(1, 1, 2)])],
            model=[stage],
            num_microbatches=1,
            seq_length=1,
            micro_batch_size=1,
            forward_only=False,
            pg_collection=ProcessGroupCollection(
                pp=group, embd=None, pos_embd=None, tp=alone, cp=alone, dp_cp=alone
            ),
            **({"p2p_communicator": p2p_communication.P2PCommunicator(group, config)} if several else {}),
        )
    gradient = None if stage.weight.grad is None else stage.weight.grad.tolist()
    return f"returned; losses {losses}, gradient of its weight: {gradient}"


def worker(rank, ranks, mode, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    try:
        said = run(rank, ranks, getattr(torch, mode))
    except Exception as error:
        said = f"raised {type(error).__name__}: {error}"
    Path(folder, f"{rank}.txt").write_text(said)
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def main():
    for ranks, mode in ((1, "enable_grad"), (1, "no_grad"), (2, "enable_grad"), (2, "no_grad")):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, ranks, mode, folder))
                for r in range(ranks)
            ]
            for process in processes:
                process.start()
            paths = [Path(folder, f"{rank}.txt") for rank in range(ranks)]
            while not any(path.exists() for path in paths):
                time.sleep(0.1)
            end = time.monotonic() + 10  # a rank that has not ended by then is taken to wait for ever
            while not all(path.exists() for path in paths) and time.monotonic() < end:
                time.sleep(0.1)
            for rank, path in enumerate(paths):
                said = path.read_text() if path.exists() else "still waiting"
                print(f"{mode}, rank {rank} of {ranks}: {said}", flush=True)
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
