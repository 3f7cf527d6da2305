"""A loss that loss_func also returns for the report, as the quick start does, is reported divided by the microbatches.

What: loss_func returns the loss and a dictionary for the report, `return loss, {'lm loss': loss}`. With m microbatches
  the step returns a loss that is m times too small; with one, as in the quick start, it is right. A detached loss is
  divided, too: it shares its memory. Gradients are right.
Where: megatron-core 0.16.1, core/pipeline_parallel/schedules.py, forward_step_calc_loss: the loss is divided in place.
Why it is one: QuickStart.md and examples/run_simple_mcore_train_loop.py return the loss itself for the report. The
  docstring of forward_step says that the first of the two is divided, and keeps the second one as what is returned.
Requirement: none (the adapter reports a copy; near TRN-1).
Schedules: all.
Known: no public thread found; Megatron-LM's own training scripts clone the loss before they report it.
Possible fix: divide out of place.

The engine calls the CUDA runtime for a device and a synchronisation; here these mean the CPU.
"""

import os
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

WORLD = 2
REPORTED = {
    "loss": lambda loss: loss,
    "loss.detach()": torch.detach,
    "loss.detach().clone()": lambda loss: loss.detach().clone(),
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

    received = None

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        return super().forward(x if self.received is None else self.received)


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
        hidden_size=1,
        pipeline_model_parallel_size=WORLD,
        pipeline_dtype=torch.float32,
    )
    stage = Stage(1, 1, bias=False)
    nn.init.constant_(stage.weight, 2.0)
    stage.config, stage.model_type = config, ModelType.encoder_or_decoder

    def run(reported, microbatches):
        def forward_step(data, model):
            def loss_func(output):
                loss = output.mean()
                return loss, {"lm loss": reported(loss)}

            return model(next(data)), loss_func

        stage.zero_grad()
        found = schedules.forward_backward_pipelining_without_interleaving(
            forward_step_func=forward_step,
            data_iterator=iter([torch.ones(1, 1, 1)] * microbatches),
            model=stage,
            num_microbatches=microbatches,
            seq_length=1,
            micro_batch_size=1,
            pg_collection=ProcessGroupCollection(
                pp=group, embd=None, pos_embd=None, tp=alone, cp=alone, dp_cp=alone
            ),
            p2p_communicator=p2p_communication.P2PCommunicator(group, config),
        )
        return [report["lm loss"].item() for report in found], stage.weight.grad.item()

    lines = []
    for words, reported in REPORTED.items():
        for microbatches in (1, 4):
            losses, gradient = run(reported, microbatches)
            lines.append(
                f"reports {words}, m = {microbatches}: losses expected {[4.0] * microbatches}, "
                f"actual {losses}; gradient expected 2.0, actual {gradient}\n"
            )
    if rank == WORLD - 1:
        Path(folder, "said.txt").write_text("".join(lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
            process.kill()
        path = Path(folder, "said.txt")
        if not path.exists():
            raise SystemExit("inconclusive: no result")
        print(path.read_text(), end="")


if __name__ == "__main__":
    main()
