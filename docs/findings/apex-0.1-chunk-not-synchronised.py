"""custom_grad_sync_func is not called for the first chunk of a rank, except on the first rank.

What: the interleaved schedule hands each chunk's parameters to custom_grad_sync_func once their gradients are there,
  for a reduction over replicas. On every rank but the first it leaves out chunk 0. Whoever reduces there has gradients
  of that chunk which are those of one replica, silently.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/pipeline_parallel/schedules/fwd_bwd_pipelining_with_interleaving.py, backward_step_helper (line 356).
Why: rank r launches a chunk's reduction r backwards after the chunk's last one, so that all ranks do so at one time.
  Chunk 0 is last in the step, and no r backwards follow. Megatron-LM launches what is left at the end of the step.
Why it is one: the docstring says "Asynchronous gradient reductions are launched after the final backward pass of each
  model chunk".
Requirement: none (the adapter wraps replicas in DDP; near DPC-1).
Schedules: _forward_backward_pipelining_with_interleaving.
Known: it came with https://github.com/NVIDIA/apex/pull/1611; no thread about this is known.
Possible fix: after the cool-down, call the function for chunks that have not been handed over.

The engine is made for CUDA; here its calls about CUDA mean the CPU, and its groups are made with gloo, for which a
function is replaced (E106).
"""

import os
import sys
import tempfile
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

torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None

from apex.transformer import parallel_state
from apex.transformer.pipeline_parallel import get_forward_backward_func, utils

parallel_state.new_process_group = lambda ranks, backend: dist.new_group(ranks)
WORLD, CHUNKS = 3, 2


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


def worker(rank, folder, microbatches):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    parallel_state.initialize_model_parallel(1, WORLD, CHUNKS)
    utils.setup_microbatch_calculator(1, None, microbatches, 1, 1)
    model, handed_over = [Stage() for _ in range(CHUNKS)], []
    get_forward_backward_func(CHUNKS, WORLD)(
        forward_step,
        [torch.ones(microbatches, 1, 1)],
        model,
        forward_only=False,
        tensor_shape=(1, 1, 1),
        custom_grad_sync_func=handed_over.extend,
    )
    trained = [str(c) for c, one in enumerate(model) if one.weight.grad is not None]
    synced = [str(c) for c, one in enumerate(model) if any(one.weight is weight for weight in handed_over)]
    text = f"gradients in chunks {' and '.join(trained)}, handed over {' and '.join(synced)}"
    Path(folder, f"{rank}").write_text(text)
    dist.barrier()
    os._exit(0)


def main():
    for microbatches in (3, 6):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (folder, microbatches), nprocs=WORLD)
            for rank in range(WORLD):
                print(f"{microbatches} microbatches, rank {rank}: {Path(folder, f'{rank}').read_text()}")


if __name__ == "__main__":
    main()
