"""A batch that is no multiple of the number of microbatches is refused on some ranks only, and the others wait.

What: a training step of 5 sequences in 2 microbatches ends in an AssertionError without a message on the ranks that
  send the first microbatch, while the others wait for it. The documentation asks for a multiple (PipelineSchedule,
  num_microbatches), and nothing checks it.
Where: OLMo-core 3.0.0, train/train_module/transformer/pipeline/pipeline_schedule.py, _split_inputs (line 359) and
  prepare_step; pipeline_stage.py, get_fwd_send_ops.
Why: the batch is split by torch.tensor_split, which makes microbatches of 3 and 2 sequences, but the size of what is
  sent is computed as 5 // 2; the sender compares the two.
Requirement: FWD-24.
Schedules: CustomScheduleInterleaved1F1B, CustomSchedule1F1BV.
Known: no thread about this is known.
Possible fix: refuse in PipelineSchedule.step(), which every rank calls with the whole batch.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which two places are patched (below).
"""

import os
import tempfile
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from olmo_core.distributed.parallel.pipeline_parallel import PipelineSchedule, PipelineScheduleType
from olmo_core.nn.lm_head import LMOutputWithLoss
from olmo_core.train.train_module.transformer.pipeline import gpu_activation_offload
from olmo_core.train.train_module.transformer.pipeline.pipeline_stage import CustomPipelineStage
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

torch.cuda.current_device = lambda: "cpu"
gpu_activation_offload.get_or_init_stream = lambda **_: None  # of the device; nothing is offloaded

P, WIDTH, CLASSES, LENGTH = 2, 8, 11, 4
make_linear = partial(nn.Linear, dtype=torch.bfloat16)


class Stage(nn.Module):
    """A quarter of a small language model; the engine sends bfloat16 [samples, length, width] between stages."""

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.d_model = WIDTH
        self.embedding = nn.Embedding(CLASSES, WIDTH, dtype=torch.bfloat16) if index == 0 else nn.Identity()
        self.linear = make_linear(WIDTH, WIDTH)
        self.head = make_linear(WIDTH, CLASSES) if index == 2 * P - 1 else None

    def forward(self, x, labels=None):
        hidden = torch.tanh(self.linear(self.embedding(x)))
        if self.head is None:
            return hidden
        logits = self.head(hidden).float().flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
        return LMOutputWithLoss(logits=None, loss=loss, ce_loss=loss.detach(), z_loss=None)


def worker(rank, folder, kind):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=P,
        timeout=timedelta(seconds=5),
    )
    mesh = init_device_mesh("cpu", (P,), mesh_dim_names=("pp",))
    style = PipelineScheduleType(kind)
    owned = [rank, 2 * P - 1 - rank if style is PipelineScheduleType.custom_1F1B_V else rank + P]
    modules = {s: Stage(s) for s in owned}
    stages = [CustomPipelineStage(modules[s], s, 2 * P, torch.device("cpu"), mesh.get_group()) for s in owned]
    schedule = PipelineSchedule(
        model_parts=list(modules.values()),
        stages=stages,
        pp_mesh=mesh,
        schedule_name=style,
        num_microbatches=P,
    )

    def outcome(samples):
        torch.manual_seed(samples)
        x, y = torch.randint(CLASSES, (2, samples, LENGTH))
        labels = {"labels": y} if 2 * P - 1 in modules else {}
        try:
            outputs = schedule.step(x, **labels)
        except Exception as error:
            text = "waited in vain" if "ime" in str(error) or "eer" in str(error) else repr(str(error))
            return f"{type(error).__name__}: {text}"
        if not labels:
            return "no error"
        parts = [Stage(s) for s in range(2 * P)]
        hidden = x
        for stage in parts[:-1]:
            hidden = stage(hidden)
        expected = float(parts[-1](hidden, labels=y).loss)
        actual = sum(float(one.loss) for own in outputs for one in own if one is not None)
        return f"loss {actual:.2f}, expected {expected:.2f}"

    for words, samples in (("4 sequences in 2 microbatches", 4), ("5 sequences in 2 microbatches", 5)):
        said = outcome(samples)
        with Path(folder, f"{rank}.txt").open("a") as file:
            file.write(f"{words}|{said}\n")
    os._exit(0)


def main():
    for kind in (PipelineScheduleType.custom_interleaved_1F1B, PipelineScheduleType.custom_1F1B_V):
        print(kind.value)
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, kind.value), nprocs=P)
            told = [Path(folder, f"{rank}.txt").read_text().splitlines() for rank in range(P)]
        for lines in zip(*told, strict=True):
            print(f"  {lines[0].partition('|')[0]}")
            for rank, line in enumerate(lines):
                print(f"    rank {rank}: {line.partition('|')[2]}")


if __name__ == "__main__":
    main()
