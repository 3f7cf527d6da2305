"""overlap_p2p_comm with async_comm computes on what has not arrived; with deallocate_pipeline_outputs it raises.

What: a step of the interleaved schedule. With overlap_p2p_comm and async_comm no rank waits for what it receives:
  gradients are those of uninitialised memory, silently. With overlap_p2p_comm and deallocate_pipeline_outputs the first
  backward of an output that was sent ends in an AssertionError, and the other ranks wait. Each option alone is right.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/pipeline_parallel/p2p_communication.py (line 381), and
  schedules/fwd_bwd_pipelining_with_interleaving.py (lines 498 and 692).
Why: with async_comm, a tensor waits for its own request when it is used; with overlap_p2p_comm, requests go to the
  schedule. With both, tensors get none and None is returned to the schedule. Outputs are freed in the branches without
  overlap only, but the backward asserts that they are freed.
Why it is one: the three are options of one function, whose docstring excludes no other with any.
Requirement: none (the adapter sets none of them; otherwise FWD-1 and others).
Schedules: _forward_backward_pipelining_with_interleaving.
Known: no thread about this is known. https://github.com/NVIDIA/apex/pull/1279 (merged), which made the deallocation,
  says in its review that it goes with the other schedule only; the docstring of this one has it as an option since.
Possible fix: hand requests to the schedule with both; free outputs once they are sent in both branches. Or refuse both.

The engine is made for CUDA; here its calls about CUDA mean the CPU, and its groups are made with gloo, for which a
function is replaced (E106). What a send or receive returns is kept, since gloo ends a process that drops it, and new
memory is filled with NaN. Not run with NCCL.
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


def filled(shape, requires_grad, **options):
    return torch.full(shape, torch.nan, **options).requires_grad_(requires_grad)


dist.isend = lambda tensor, dst, group: keep(isend(tensor, dst=dst, group=group))
dist.irecv = lambda tensor, src, group: keep(irecv(tensor, src=src, group=group))
torch.empty = filled
torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
torch.cuda.FloatTensor = torch.FloatTensor

from apex.transformer import parallel_state
from apex.transformer.pipeline_parallel import get_forward_backward_func, utils

parallel_state.new_process_group = lambda ranks, backend: dist.new_group(ranks)
WORLD, CHUNKS, MICROBATCHES = 3, 2, 6
RUNS = (
    ("overlap_p2p_comm",),
    ("async_comm",),
    ("deallocate_pipeline_outputs",),
    ("overlap_p2p_comm", "async_comm"),
    ("overlap_p2p_comm", "deallocate_pipeline_outputs"),
)


class Stage(nn.Module):
    """Multiplies by a weight of 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def set_input_tensor(self, tensors):
        (self.received,) = tensors

    def forward(self, x):
        return self.weight * (x if self.received is None else self.received)


def forward_step(microbatch, model):
    return model(*microbatch), lambda output: (output.sum(), {})


def worker(rank, folder, *options):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    parallel_state.initialize_model_parallel(1, WORLD, CHUNKS)
    utils.setup_microbatch_calculator(1, None, MICROBATCHES, 1, 1)
    model = [Stage() for _ in range(CHUNKS)]
    try:
        get_forward_backward_func(CHUNKS, WORLD)(
            forward_step,
            [torch.arange(2.0 * MICROBATCHES).view(MICROBATCHES, 2, 1)],
            model,
            forward_only=False,
            tensor_shape=(1, 2, 1),
            **dict.fromkeys(options, True),
        )
        found = "gradients " + " and ".join(f"{one.weight.grad.item():.2f}" for one in model)
    except AssertionError as error:
        found = f"AssertionError: {error}"
    except RuntimeError:  # the other one has ended
        found = "waits"
    Path(folder, f"{rank}").write_text(found)
    while "gradients" in found and not all(Path(folder, f"{other}").exists() for other in range(WORLD)):
        time.sleep(0.1)  # messages are still under way
    os._exit(0)


def main():
    due = sum(range(2 * MICROBATCHES)) / MICROBATCHES
    print(f"every gradient is due to be {due:.2f}")
    for options in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, *options), nprocs=WORLD)
            for rank in (1, 2):
                print(f"{' and '.join(options)}: rank {rank}: {Path(folder, f'{rank}').read_text()}")


if __name__ == "__main__":
    main()
