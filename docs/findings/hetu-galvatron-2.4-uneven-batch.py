"""With the number of chunks that the engine chooses, samples of a short last microbatch count for more, without a word.

What: each microbatch's mean loss is divided by the number of microbatches, however many samples it has. A batch that
  `chunks` does not divide is cut by torch.chunk into long microbatches and a short one, whose samples weigh more than
  the others, in gradients and in the loss that forward_backward returns. `chunks` is -1 by default, and the engine then
  chooses it itself: for 10 samples it takes 3 chunks (4, 4, 2 samples). Without a pipeline a warning is printed ("The
  global batch size is not divisible by chunks, the results may be skewed"), with a pipeline none; the same batch has
  the right gradient at `pp_deg` 1, where the engine takes one chunk.
Where: Hetu-Galvatron 2.4.0 (and main of June 2026), galvatron/core/runtime/pipeline/pipeline.py, forward_step (line
  912); hybrid_parallel_config.py, get_chunks (line 343); hybrid_parallel_model.py, loss_to_cpu (line 85).
Why: `loss / self.real_chunks`, where it would have to be weighted by samples, and the mean of the losses likewise.
Requirement: TRN-3 (with uneven batches).
Schedules: gpipe, pipedream_flush; also no pipeline where chunks is given, with the warning.
Known: the engine's own warning, without a pipeline; no thread about this was found.
Possible fix: weigh a microbatch by its samples, choose a number of chunks that divides the batch, or refuse.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which a few calls are patched (below).
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")
if find_spec("apex") is None:  # its kernels are imported, and not used here
    sys.modules.update(
        {name: MagicMock() for name in ("apex", "apex.optimizers", "apex.multi_tensor_apply", "amp_C")}
    )

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from galvatron.core.runtime.hybrid_parallel_config import get_chunks
from galvatron.core.runtime.hybrid_parallel_model import GalvatronModel
from galvatron.core.runtime.pipeline import PipelineParallel, PipeSequential
from megatron.training.global_vars import set_args
from torch import nn

torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda: None

WORLD, WIDTH = 2, 4


def loss_func(labels, outputs):
    loss = nn.functional.mse_loss(outputs[0], labels[0])
    return loss, loss.detach()


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    arguments = SimpleNamespace(
        pp_deg=WORLD, sequence_parallel=False, shape_order="BSH", async_grad_reduce=True
    )
    set_args(arguments)
    lines = []
    for schedule in ("gpipe", "pipedream_flush"):
        for samples in (8, 10):
            torch.manual_seed(0)
            layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
            arguments.pipeline_type, arguments.global_train_batch_size, arguments.chunks = (
                schedule,
                samples,
                -1,
            )
            pipe = PipelineParallel(
                PipeSequential(*layers),
                [0, 1],
                [[[-1, WIDTH]], None],
                chunks=get_chunks(arguments),
                process_group=range(WORLD),
            )
            x, y = torch.randn(2, samples, WIDTH)
            y[-2:] += 3  # the last two samples are worse than the others
            loss = GalvatronModel(pipe).forward_backward([[x], [y]], loss_func=loss_func)
            gradient = layers[-1].bias.grad
            if rank == WORLD - 1:
                layers[-1].bias.grad = None
                expected = nn.functional.mse_loss(nn.Sequential(*layers)(x), y)
                expected.backward()
                sizes = ", ".join(str(len(part)) for part in x.chunk(arguments.chunks))
                lines.append(f"{schedule}, {samples} samples: the engine takes microbatches of {sizes}\n")
                lines.append(
                    f"  gradient {float(gradient[0]):.3f}, expected {float(layers[-1].bias.grad[0]):.3f}; "
                )
                lines.append(f"loss {loss:.3f}, expected {float(expected):.3f}\n")
    if rank == WORLD - 1:
        Path(folder, "told.txt").write_text("".join(lines))
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        print(Path(folder, "told.txt").read_text(), end="")


if __name__ == "__main__":
    main()
