"""Operations of a stage that are not due run on buffers that nobody has filled, or are answered with a bare KeyError.

What: stages driven chunk by chunk, as a schedule drives them. forward_one_chunk before the chunk's input was received,
  and backward_one_chunk before the gradient was received, take the receive buffer as it is and return (the buffers are
  filled with 7 here, so that it shows); forward_one_chunk a second time runs again. backward_one_chunk before the
  forward or a second time, forward_one_chunk on a later stage and get_fwd_recv_ops for a chunk that there is not,
  and get_fwd_send_ops before the forward raise KeyError(chunk).
Where: torch 2.13.0, distributed/pipelining/stage.py, _retrieve_recv_activations and _retrieve_recv_grads (lines 639 to
  752), forward_one_chunk, backward_one_chunk (self.fwd_cache.pop), get_fwd_recv_ops, get_fwd_send_ops.
Why: nothing is kept of which chunk has received, run or gone back; _check_chunk_id (line 265) is asked by backwards
  only.
Requirement: ERR-12, ERR-17.
Schedules: none by itself; whoever drives stages by hand, or writes a schedule.
Known: -
Possible fix: mark buffers as filled when their receive was waited for, and look up caches behind a check that names
  the chunk and what is due.
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


def answer(call):
    try:
        found = call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    return "no error" if found is None else f"no error; {found}"


def fill(infos):
    for info in infos:
        with torch.no_grad():
            info.buffer.fill_(7)


def run(rank):
    torch.manual_seed(0)
    module = nn.Linear(3, 3, bias=False)
    stage = PipelineStage(module, rank, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, M, loss_fn=nn.functional.mse_loss)
    x = torch.randn(2 * M, 3)
    stage.has_backward = True
    stage.clear_runtime_states()
    schedule._initialize_stage((x[:2],), {}, x[:2])
    said = {}

    def forward(k):
        return stage.forward_one_chunk(k, (x[2 * k : 2 * k + 2],) if stage.is_first else ())

    if stage.is_last:
        fill(stage.args_recv_info[0])

        def early():
            output, sevens = forward(0), module(torch.full((2, 3), 7.0))
            return f"it is the output for a buffer of sevens: {torch.equal(output, sevens)}"

        said["forward before its input is there"] = answer(early)
        said[f"forward of chunk {M}"] = answer(lambda: forward(M))
        said[f"receive of chunk {M}"] = answer(lambda: p2p(stage.get_fwd_recv_ops(M)))
    said["backward before the forward"] = answer(lambda: stage.backward_one_chunk(1))
    if stage.is_first:
        said["send before the forward"] = answer(lambda: p2p(stage.get_fwd_send_ops(0)))
    losses = []
    for k in range(M):
        p2p(stage.get_fwd_recv_ops(k))
        output = forward(k)
        if k == 1:
            said["forward a second time"] = answer(lambda: forward(1) is None or None)
        p2p(stage.get_fwd_send_ops(k))
        losses.append(nn.functional.mse_loss(output, x[2 * k : 2 * k + 2]) if stage.is_last else None)
    if stage.is_first:
        fill(stage.grad_recv_info[0])

        def early_backward():
            stage.backward_one_chunk(0)
            sevens = torch.full((2, 3), 7.0).T @ x[:2]
            return f"the weight's gradient is that of sevens: {torch.allclose(module.weight.grad, sevens)}"

        said["backward before its gradient is there"] = answer(early_backward)
        said["backward a second time"] = answer(lambda: stage.backward_one_chunk(0))
    return [f"stage {rank}, {what}: expected: words; actual {found}" for what, found in said.items()]


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
