"""A linear layer of the engine whose input needs no gradient ends in an UnboundLocalError.

What: where an embedding (or whatever else comes before) is frozen, the backward of the first ColumnParallelLinear,
  RowParallelLinear or ScaleColumnParallelLinear raises UnboundLocalError: "cannot access local variable
  'handle_grad_input'". In a pipeline that is the first stage's rank, and the others wait for it. torch's own linear
  layer gives the weight its gradient.
Where: InternEvo 0.5.3 (develop of January 2025; 0.5.2 is the same here), internlm/model/modules/linear.py,
  SPFusedDenseFunc.backward (lines 131 and 164), in the modes mtp, msp and fsp of tensor parallelism, also on one rank.
Why: the handle is made where the input needs a gradient, and waited for always.
Requirement: none: frozen parts are not claimed, and the suite's models have torch's layers (it would be TRN-5).
Schedules: every one, and training without a pipeline (run here, in one process).
Known: no thread about this is known.
Possible fix: wait where the handle was made.

The engine runs on CUDA devices; here it runs on CPU with gloo, with two calls of its accelerator patched (below).
"""

import logging
import os
import sys
import tempfile
import warnings
from importlib.util import find_spec
from types import ModuleType

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WIDTH = 4


def load_engine():
    """Import the engine; also without packages that its data sets and models want, and without CUDA."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    unused = ("datasets", "datasets.distributed", "PIL", "transformers")
    missing = [name for name in unused if find_spec(name.partition(".")[0]) is None]
    for name in missing:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__getattr__ = lambda _: object
    import internlm.core.scheduler  # noqa: F401
    from internlm.accelerator import get_accelerator

    for name in missing:
        del sys.modules[name]
    get_accelerator().is_available = lambda: False
    get_accelerator().synchronize = lambda: None


def configure():
    from internlm.core.context import Config, ParallelMode, global_context

    parallel = {"pipeline": {"size": 1, "mode": "1F1B"}, "tensor": {"size": 1, "mode": "mtp"}}
    global_context.load_config(Config({"parallel": parallel, "data": {}, "model": {"dtype": torch.float32}}))
    global_context._register_dist(0, 1, dist.group.WORLD, None, [0], ParallelMode.TENSOR)


def make_linear():
    from internlm.core.context import ParallelMode, global_context
    from internlm.core.parallel.comm.tensor import LinearRole, TensorParallelCommunicator
    from internlm.model.modules.linear import ColumnParallelLinear

    linear = ColumnParallelLinear(WIDTH, WIDTH, bias=False)
    group = global_context.get_group(ParallelMode.TENSOR)
    linear.register_communicator(TensorParallelCommunicator(group, LinearRole.COLUMN))
    return linear


def worker(_, folder):
    load_engine()
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    configure()
    for frozen in (False, True):
        torch.manual_seed(0)
        embedding, linear = nn.Embedding(7, WIDTH).requires_grad_(not frozen), make_linear()
        tokens = torch.arange(7)
        expected = embedding(tokens).sum(0).expand(WIDTH, WIDTH)  # of the weight, for the sum of all outputs
        try:
            linear(embedding(tokens)).sum().backward()
        except UnboundLocalError as error:
            said = f"{type(error).__name__}: {error}"
        else:
            said = "the weight's gradient is " + (
                "right" if torch.allclose(linear.weight.grad, expected) else "wrong"
            )
        print(f"embedding {'frozen' if frozen else 'trained'}: {said}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=1)


if __name__ == "__main__":
    main()
