"""Stages driven by hand: a step that is ended before all its backwards have run is ended without a word.

What: one stage, two microbatches, both forwards, the backward of the first; then what a schedule calls at the end of a
  step, PipelineStage.perform_reduce_grad(2) and clear_runtime_states(). Nothing is raised: the gradient is that of one
  microbatch, divided by two. The second backward then raises KeyError(1), and a caller who does not ask for it trains
  on half of the gradient.
Where: torch 2.13.0, distributed/pipelining/stage.py, clear_runtime_states (lines 604 to 622), scale_grads (765) and
  perform_reduce_grad (1164).
Why: fwd_cache, which holds a chunk from its forward to its backward, is cleared without a look into it.
Requirement: ERR-12, ERR-17.
Schedules: none by itself; whoever drives stages by hand, or writes a schedule.
Known: -
Possible fix: where gradients are scaled or a step's states cleared, raise if fwd_cache still holds chunks of a step
  that trains, and name them.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

M = 2


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        module = nn.Linear(3, 3, bias=False)
        x, target = torch.randn(2 * M, 3), torch.randn(2 * M, 3)
        parts = list(zip(x.chunk(M), target.chunk(M), strict=True))
        whole = torch.autograd.grad(
            sum(nn.functional.mse_loss(module(a), b) for a, b in parts) / M, module.weight
        )[0]
        (a, b), _ = parts
        first = torch.autograd.grad(nn.functional.mse_loss(module(a), b), module.weight)[0]

        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, M, loss_fn=nn.functional.mse_loss)
        stage.has_backward = True
        stage.clear_runtime_states()
        schedule._initialize_stage((parts[0][0],), {}, parts[0][1])
        losses = [
            nn.functional.mse_loss(stage.forward_one_chunk(k, (a,)), b) for k, (a, b) in enumerate(parts)
        ]
        stage.backward_one_chunk(0, loss=losses[0])
        try:
            stage.perform_reduce_grad(M)
            stage.clear_runtime_states()
        except Exception as error:
            print(f"the end of the step before the backward of chunk 1: {type(error).__name__}: {error}")
        else:
            print("the end of the step before the backward of chunk 1: expected: an error; actual no error")
        print(f"the gradient is that of both chunks: {torch.allclose(module.weight.grad, whole)}")
        print(f"it is that of chunk 0, divided by {M}: {torch.allclose(module.weight.grad, first / M)}")
        try:
            stage.backward_one_chunk(1, loss=losses[1])
        except Exception as error:
            print(f"the backward of chunk 1 after it: {type(error).__name__}: {error}")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
