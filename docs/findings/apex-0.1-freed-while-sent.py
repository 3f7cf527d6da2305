"""With async_comm and deallocate_pipeline_outputs an output is freed while it is being sent.

What: a step of 1F1B with both. Rank 0 begins to send an output, frees it at once, and computes the next one. Where rank
  1 receives a moment later, it is given what is in that memory then: another microbatch's activation, or anything. The
  gradients are wrong, silently. Either option alone is right. The interleaved schedule does the same.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/pipeline_parallel/schedules/fwd_bwd_pipelining_without_interleaving.py (lines 444 and 519: the
  output is freed after send_forward) and p2p_communication.py (line 314: what a send could be waited for is dropped).
Why: with async_comm a send returns before it is done. torch.distributed.isend forbids to change a tensor before the
  send is waited for, which nothing does; `.data = ...` gives its memory back.
Why it is one: both are options of the schedules, whose docstring excludes no other with either.
Requirement: none (neither option is set by the adapter; otherwise FWD-1, TRN-1 and others, by chance).
Schedules: 1F1B (run here), interleaved 1F1B.
Known: https://github.com/NVIDIA/apex/pull/1373, which made async_comm, asks whether sends must be waited for
  because of their memory, and leaves it open. In Megatron-LM the same with another option: E14.
Possible fix: keep a send's handle, and wait for it before its tensor is freed.

The engine is made for CUDA; here its calls about CUDA mean the CPU, and its groups are made with gloo, for which a
function is replaced (E106). What a send returns is kept, since gloo ends a process that drops it. Not run with NCCL.
"""

import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

isend, irecv, kept = dist.isend, dist.irecv, []


def keep(work):
    kept.append(work)
    return work


dist.isend = lambda tensor, dst, group: keep(isend(tensor, dst=dst, group=group))
torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
torch.cuda.FloatTensor = torch.FloatTensor

from apex.transformer import parallel_state
from apex.transformer.pipeline_parallel import get_forward_backward_func, utils

parallel_state.new_process_group = lambda ranks, backend: dist.new_group(ranks)
WORLD, WIDTH, MICROBATCHES = 3, 16, 6
OPTIONS = ("async_comm", "deallocate_pipeline_outputs")


class Stage(nn.Module):
    """Multiplies by a weight of 1, and remembers the first number of everything that it is given."""

    def __init__(self):
        super().__init__()
        self.weight, self.given = nn.Parameter(torch.ones(1)), []

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        x = x if self.received is None else self.received
        self.given.append(x.flatten()[0].item())
        return self.weight * x


def forward_step(microbatch, model):
    return model(*microbatch), lambda output: (output.mean(), {})


def worker(rank, folder, *options):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    parallel_state.initialize_model_parallel(1, WORLD)
    utils.setup_microbatch_calculator(1, None, MICROBATCHES, 1, 1)
    numbers = [float(k + 1) for k in range(MICROBATCHES)]
    model, data = Stage(), torch.tensor(numbers).view(-1, 1, 1).expand(-1, WIDTH, WIDTH)
    dist.barrier()
    time.sleep(rank)  # a later rank receives a moment later
    get_forward_backward_func(None, WORLD)(
        forward_step,
        [data],
        [model],
        forward_only=False,
        tensor_shape=(1, WIDTH, WIDTH),
        **dict.fromkeys(options, True),
    )
    given = "every microbatch" if model.given == numbers else "OTHER NUMBERS"
    gradient = "right" if abs(model.weight.grad.item() - 3.5) < 1e-5 else "WRONG"
    Path(folder, f"{rank}").write_text(f"is given {given}, gradient {gradient}")
    dist.barrier()
    os._exit(0)


def main():
    for options in (OPTIONS[:1], OPTIONS[1:], OPTIONS):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, *options), nprocs=WORLD)
            for rank in (0, 1):
                print(f"{' and '.join(options)}: rank {rank} {Path(folder, f'{rank}').read_text()}")


if __name__ == "__main__":
    main()
