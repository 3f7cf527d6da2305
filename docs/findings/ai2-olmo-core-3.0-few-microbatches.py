"""With fewer microbatches than ranks the interleaved schedule raises a KeyError on one rank, and the others wait.

What: the engine takes every number of microbatches that its check of whole rounds allows. With fewer than ranks the
  first rank computes a stage before its input has come: KeyError on that rank, while the others wait for it.
  Evaluations cut a batch into one microbatch per sequence: one with fewer sequences than ranks ends like that. One
  whose number of sequences is no whole number of rounds is refused on every rank; but if the caller goes on, the
  refused number stays, and training steps silently leave out microbatches.
Where: OLMo-core 3.0.0, train/train_module/transformer/pipeline/pipeline_schedule.py, CustomScheduleInterleaved1F1B:
  reset_n_microbatches (line 164) and the receives of _step_microbatches; distributed/parallel/pipeline_parallel.py,
  PipelineSchedule.step.
Why: a rank's actions are laid side by side without looking at what they wait for, and it receives in the time slot in
  which its neighbour sends. With m >= p the input of the second chunk comes before it is due; with fewer it comes
  later. reset_n_microbatches stores the number before it checks it, and step() restores it only if nothing raises.
Requirement: SCH-6 (the KeyError).
Schedules: CustomScheduleInterleaved1F1B; CustomSchedule1F1BV is right with few microbatches, but inherits the check of
  whole rounds, which it does not need.
Known: near https://github.com/pytorch/torchtitan/issues/775 (open: a hang with fewer microbatches than ranks).
Possible fix: put idle slots before actions whose input has not come, as CustomSchedule1F1BV does; check before storing.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which two places are patched (below).
"""

import os
import tempfile
import warnings
from contextlib import nullcontext
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

    def outcome(samples, *, trains):
        torch.manual_seed(samples)
        x, y = torch.randint(CLASSES, (2, samples, LENGTH))
        labels = {"labels": y} if 2 * P - 1 in modules else {}
        try:
            with nullcontext() if trains else torch.no_grad():
                outputs = schedule.step(x, forward_only=not trains, **labels)
        except Exception as error:
            text = "waited in vain" if "ime" in str(error) or "eer" in str(error) else str(error)
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

    steps = [("training, 10 sequences", 10, True), ("evaluation, 2 sequences", 2, False)]
    steps += [("evaluation, 5 sequences", 5, False), ("training, 10 sequences", 10, True)]
    if kind == PipelineScheduleType.custom_interleaved_1F1B.value:
        steps += [("evaluation, 1 sequence", 1, False)]
    for words, samples, trains in steps:
        said, found = outcome(samples, trains=trains), [None] * P
        with Path(folder, f"{rank}.txt").open("a") as file:
            file.write(f"{words}|{said}\n")
        if words.startswith("evaluation, 1 "):
            break
        dist.all_gather_object(found, said)
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
