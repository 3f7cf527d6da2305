"""A weight part that is not due is answered with a bare KeyError.

What: backward_weight_one_chunk a second time for a chunk, or in the second step before the chunk's input part,
  raises KeyError(chunk). In the first step, before the input part, the same call gets an error in words.
Where: torch 2.13.0, distributed/pipelining/stage.py, backward_weight_one_chunk, lines 1069 and 1083.
Why: without a dw_builder a placeholder in self.dw_runner says that the weight part is due; it is never taken out,
  neither by the weight part (line 1083 pops backward_state only) nor by clear_runtime_states. The check at line
  1069 then lets the call pass, and self.backward_state.pop raises.
Requirement: SPL-6.
Schedules: none by itself; whoever drives stages by hand, or writes a schedule.
Possible fix: pop dw_runner in both branches, and clear both dictionaries in clear_runtime_states.
"""

import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WORLD = 2
M = 2


def p2p(operations):
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()


def ask(stage, chunk):
    """The answer to a weight part that is not due."""
    try:
        stage.backward_weight_one_chunk(chunk)
    except Exception as error:
        text = str(error).splitlines()[0]
        return f"{type(error).__name__}: {text[:60]}"
    return "no error"


def run(rank):
    torch.manual_seed(0)
    stage = PipelineStage(nn.Linear(3, 3), rank, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, M, loss_fn=nn.functional.mse_loss)
    x = torch.randn(2 * M, 3)
    answers = {}
    for step in range(2):
        stage.has_backward = True
        stage.clear_runtime_states()
        schedule._initialize_stage((x[:2],), {}, x[:2])
        losses = []
        for k in range(M):
            p2p(stage.get_fwd_recv_ops(k))
            output = stage.forward_one_chunk(k, (x[2 * k : 2 * k + 2],))
            losses.append(nn.functional.mse_loss(output, x[2 * k : 2 * k + 2]) if stage.is_last else None)
            p2p(stage.get_fwd_send_ops(k))
        for k in range(M):
            if k == 0:
                answers[f"step {step}, before the input part"] = ask(stage, k)
            p2p(stage.get_bwd_recv_ops(k))
            stage.backward_one_chunk(k, loss=losses[k], full_backward=False)
            p2p(stage.get_bwd_send_ops(k))
            stage.backward_weight_one_chunk(k)
            if k == 0:
                answers[f"step {step}, a second time"] = ask(stage, k)
    return [f"stage {rank}, {when}: expected: words; actual {answer}" for when, answer in answers.items()]


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    lines = run(rank)
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=60)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
