"""A complex tensor beside another one between stages gets no gradient, and nothing is raised.

What: a stage hands on its activation and a complex tensor that it computed (the spectrum of a Fourier layer, say). The
  loss is exact, but the gradient that reaches the stage before is that of the activation alone: all that passes
  through the complex tensor is missing. With the two parts as a real tensor in its place, all is right. A complex
  tensor alone ends the step in an error on both ranks.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py, _exec_recv_activations (line 1152), _exec_send_grads (line 1104),
  _exec_recv_grads (line 1201) and _exec_backward_pass (line 849); runtime/pipe/dualpipev.py, lines 203 to 269.
Why: all of them ask is_floating_point() whether a tensor can have a gradient. That is False for complex tensors, which
  can; they are among the dtypes that the engine provides for (PipelineEngine.ID_TO_DTYPE).
Requirement: FWD-33.
Schedules: TrainSchedule on two ranks or more, DualPipeV (DualPipeVModule) from one rank on.
Known: no public thread found.
Possible fix: ask t.is_floating_point() or t.is_complex() in all these places.
"""

import io
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, M, WIDTH = 2, 4, 4
CASES = (  # what stage 0 hands on, and the class of the model
    ("the activation and a real tensor", "PipelineModule"),
    ("the activation and a complex tensor", "PipelineModule"),
    ("the activation and a real tensor", "DualPipeVModule"),
    ("the activation and a complex tensor", "DualPipeVModule"),
    ("a complex tensor", "PipelineModule"),  # last, as it can leave a rank waiting
)


class First(nn.Linear):
    """Hands on its activation, and numbers with two parts: complex, or the parts in a dimension more."""

    def __init__(self, handed_on):
        super().__init__(WIDTH, WIDTH)
        self.handed_on = handed_on

    def forward(self, x):
        y = super().forward(x)
        parts = torch.stack((y, y * y), -1)
        if self.handed_on == "the activation and a real tensor":
            return y, parts
        value = torch.view_as_complex(parts) * 1.0
        return value if self.handed_on == "a complex tensor" else (y, value)


class Last(nn.Linear):
    """Uses all that it is given."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)

    def forward(self, given):
        y, value = given if isinstance(given, tuple) else (0.0, given)
        parts = torch.view_as_real(value) if value.is_complex() else value
        return super().forward(y + parts[..., 0] + parts[..., 1])


def layers(handed_on, count):
    torch.manual_seed(0)
    before = [nn.Linear(WIDTH, WIDTH) for _ in range(count - 2)]
    return [*before, First(handed_on), Last()]


def batches():
    torch.manual_seed(1)
    return [(torch.randn(1, WIDTH), torch.randn(1, WIDTH)) for _ in range(M)]


def trained(handed_on, kind):
    """The loss, and the size of the first layer's gradient: as expected, and of this engine on the first rank."""
    import deepspeed
    import deepspeed.pipe

    stages = layers(handed_on, 2 * WORLD if kind == "DualPipeVModule" else WORLD)
    loss = sum(nn.functional.mse_loss(nn.Sequential(*stages)(x), y) / M for x, y in batches())
    (gradient,) = torch.autograd.grad(loss, stages[0].weight)
    module = getattr(deepspeed.pipe, kind)(
        stages, num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    before = stages[0].weight.detach().clone()
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": M,
            "gradient_clipping": 0.0,
        },
    )
    expected = f"expected loss {loss.item():.4f}, gradient {gradient.norm().item():.4f}"
    try:
        total = engine.train_batch(iter(batches()))
    except (AssertionError, RuntimeError) as error:
        return f"{expected}; actual {type(error).__name__}"
    moved = before - stages[0].weight.detach()  # the gradient, as the learning rate is 1
    return f"{expected}; actual loss {total.item():.4f}, gradient {moved.norm().item():.4f}"


def worker(rank, folder):
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the engine prints
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    lines = [f"{kind}, {handed_on}: {trained(handed_on, kind)}\n" for handed_on, kind in CASES]
    if rank == 0:
        Path(folder, "0.part").write_text("".join(lines))
        Path(folder, "0.part").rename(Path(folder, "0.txt"))
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        result = Path(folder, "0.txt")
        while processes[0].is_alive() and not result.exists():
            time.sleep(0.1)
        Path(folder, "end").touch()
        for process in processes:
            process.join(timeout=1)
            process.kill()
        if not result.exists():
            sys.exit("inconclusive: the first rank gave no result")
        print(result.read_text(), end="")


if __name__ == "__main__":
    main()
