"""apex's GradScaler raises in every update with a torch of today.

What: `apex.transformer.amp.GradScaler`, which is given to the schedules as grad_scaler so that ranks of a pipeline skip
  a step together, ends its first update() in AttributeError, after the step has been taken. torch's own is right.
Where: NVIDIA/apex at tag 25.09 (August 2025, the last release that has apex.transformer; 0.1 in its setup.py),
  apex/transformer/amp/grad_scaler.py, GradScaler.update (line 125).
Why: it uses torch.cuda.amp.grad_scaler._refresh_per_optimizer_state, a private name, which torch 2.13 has in
  torch.amp.grad_scaler only.
Why it is one: the class replaces torch's update, and must end as that does: "This method should be called at the end of
  the iteration".
Requirement: none (the adapter does not claim scaled losses; near TRN-24).
Schedules: all; run here without a pipeline.
Known: near https://github.com/NVIDIA/apex/issues/2024 (open), about private names of that module in what is left.
Possible fix: take it from torch.amp.grad_scaler.

torch's class is switched off without CUDA; here it takes CUDA to be there, and computes on the CPU.
"""

import sys
import warnings

if not sys.warnoptions:
    warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import grad_scaler as scalers

torch.cuda.FloatTensor = torch.FloatTensor
scalers.torch.cuda.amp.common.amp_definitely_not_available = lambda: False

from apex.transformer import parallel_state
from apex.transformer.amp import GradScaler
from apex.transformer.pipeline_parallel import get_forward_backward_func, utils


def forward_step(microbatch, model):
    return model(*microbatch), lambda output: (output.sum(), {})


class Model(nn.Linear):
    def set_input_tensor(self, tensors):
        """There is one stage."""


def two_steps(scaler):
    model = Model(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in (1, 2):
        optimizer.zero_grad()
        get_forward_backward_func(None, 1)(
            forward_step, [torch.ones(2, 1, 1)], [model], forward_only=False, grad_scaler=scaler
        )
        scaler.step(optimizer)
        print(f"  step {step}: weight {model.weight.item():.2f}")
        try:
            scaler.update()
        except AttributeError as error:
            print(f"  step {step}: AttributeError: {error}")
            return


def main():
    parallel_state.new_process_group = lambda ranks, backend: dist.new_group(ranks)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    utils.setup_microbatch_calculator(1, None, 2, 1, 1)
    for name, kind in (("torch's", scalers.GradScaler), ("apex's", GradScaler)):
        print(f"{name} GradScaler")
        two_steps(kind(init_scale=8.0))


if __name__ == "__main__":
    main()
