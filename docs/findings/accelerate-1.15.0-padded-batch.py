"""A batch comes back with rows that it did not have, and one that can be divided evenly is made one that cannot.

What: accelerate's ``prepare_pippy`` makes batches larger, so that they can be cut into ``num_chunks`` chunks.
  3 samples in 2 chunks give 4 outputs, the last of them of a row of zeros; the caller cannot tell which row is none
  of its own. 8 samples in 2 chunks, which need nothing, become 10, whose chunks of 5 are not what the stages were
  traced for: the process that receives them ends (gloo). The same model, traced and run by torch alone, gives 8.
Where: accelerate 1.15.0, utils/operations.py, pad_input_tensors, and inference.py, pippy_forward.
Why: the padding is ``num_processes - batch_size // num_processes``, and not what is missing to the next multiple;
  ``last_inputs > to_pad & to_pad < 1`` compares with ``to_pad & to_pad``. What the last stage returns is never cut
  to the batch again.
Requirement: FWD-1, FWD-2.
Schedules: GPipe, evaluation (it has nothing else).
Possible fix: pad by ``-batch_size % num_chunks``, and return the first ``batch_size`` rows.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="true")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import pipelining

WORLD, CHUNKS = 2, 2
PATIENCE = 60  # seconds; most of it is for imports
CASES = (  # what runs the model, samples of the batch, samples that the model is traced with
    ("accelerate", 4, 2),
    ("accelerate", 3, 2),
    ("accelerate", 8, 4),
    ("torch alone", 8, 4),
)


def outputs_of(how, model, batch, traced, rank):
    if how == "accelerate":
        from accelerate.inference import prepare_pippy

        return prepare_pippy(model, split_points=["2"], example_args=(traced,), num_chunks=CHUNKS)(batch)
    spec = {"2": pipelining.SplitPoint.BEGINNING}
    stage = pipelining.pipeline(model, (traced,), split_spec=spec).build_stage(rank, torch.device("cpu"))
    return pipelining.ScheduleGPipe(stage, CHUNKS).step(*([batch] if rank == 0 else []))


def run(rank, how, samples, traced):
    from accelerate import PartialState

    PartialState(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))).eval()
    batch = torch.randn(samples, 3)
    with torch.no_grad():
        expected = model(batch)
        output = outputs_of(how, model, batch, torch.randn(traced, 3), rank)
    if output is None:
        return "has no output"
    right = torch.allclose(output[:samples], expected)
    return f"{len(output)} outputs, the first {samples} {'right' if right else 'wrong'}"


def worker(rank, case, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD), LOCAL_WORLD_SIZE=str(WORLD)
    )
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    told = run(rank, *case)
    Path(folder, f"{rank}.txt").write_text(told)
    os._exit(0)


def main():
    for how, samples, traced in CASES:
        print(f"{how}: {samples} samples in {CHUNKS} chunks, traced with {traced}")
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [
                make(target=worker, args=(rank, (how, samples, traced), folder)) for rank in range(WORLD)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=PATIENCE)
            last = processes[-1]
            path = Path(folder, f"{WORLD - 1}.txt")
            if path.exists():
                print(f"  last rank: {path.read_text()}")
            elif last.exitcode == -6:
                print("  last rank: the process ends (SIGABRT)")
            elif last.exitcode is None:
                print("  last rank: waits")
            else:
                sys.exit(f"inconclusive: the last rank ended with exit code {last.exitcode}")
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
