"""The first step begins with messages of float32, which are received as the pipeline's dtype.

What: before the first training step the runtime sends a number to every neighbour, so that communicators are made. It
  is float32. The neighbour receives one number of `pipeline_dtype`: with float16 or bfloat16, as most trainings have
  it, 4 bytes are sent where 2 are awaited. Under gloo the receiving process aborts, and no training can begin. Under
  NCCL it depends on the transport: between machines it is an error.
Where: sail-sg/zero-bubble-pipeline-parallelism at 39f2c186 (May 2025, megatron-core 0.9.0rc0),
  megatron/core/pipeline_parallel/zerobubble/runtime.py, bootstrap_and_profile_p2p_communication (line 1202).
Why: `nccl_init_tensor` is made by torch.Tensor, which is float32; recv_forward and recv_backward make what they receive
  into by config.pipeline_dtype. The messages that are timed next have the dtype.
Why it is one: torch.distributed asks for the same dtype and number of elements on both sides of a message.
Requirement: none (without NCCL the adapter leaves these messages out; near COM-1 and FWD-6).
Schedules: all of the runtime.
Known: https://github.com/sail-sg/zero-bubble-pipeline-parallelism/issues/60 (closed): between two
  machines NCCL reports "message truncated : receiving 4 bytes instead of 2". The commit above is later.
Possible fix: make the tensor with dtype=config.pipeline_dtype.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which calls are patched, and packages of kernels
that are not used have stand-ins (below).
"""

import os
import signal
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from datetime import timedelta
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")
KERNELS = (
    *("apex", "apex.optimizers", "apex.multi_tensor_apply", "amp_C", "pynvml"),
    *("flash_attn", "flash_attn.flash_attn_interface", "fused_weight_gradient_mlp_cuda"),
)
sys.modules.update({name: MagicMock() for name in KERNELS if find_spec(name.partition(".")[0]) is None})

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

empty = torch.empty
if not torch.cuda.is_available():
    torch.cuda.nvtx.range = lambda _: lambda function: function
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda: None
    torch.cuda.FloatTensor = torch.FloatTensor
    torch.Tensor.cuda = lambda tensor: tensor
    torch.empty = lambda *size, device=None, **options: empty(*size, **options)

from megatron.core import parallel_state, timers
from megatron.core.pipeline_parallel.zerobubble import runtime
from megatron.core.transformer import TransformerConfig
from megatron.training import global_vars

WORLD, SHAPE = 2, (3, 2, 4)


def worker(rank, folder, dtype):
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what gloo says when it aborts
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/{dtype}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    facts = ("zero_bubble_v_schedule", "enable_1f1b_v", "pre_communication_optimization")
    global_vars.set_args(SimpleNamespace(**dict.fromkeys(facts, False)))
    global_vars._GLOBAL_TIMERS = timers.Timers(0, "minmax")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=WORLD)
    config = TransformerConfig(
        num_layers=WORLD,
        num_layers_without_padding=WORLD,
        num_attention_heads=1,
        hidden_size=SHAPE[-1],
        pipeline_model_parallel_size=WORLD,
        pipeline_dtype=dtype,
        overlap_p2p_comm=True,
        batch_p2p_comm=False,
    )
    runtime.ScheduleTimers.iter_counter = 1  # the first training step
    with redirect_stdout(sys.stderr):
        runtime.bootstrap_and_profile_p2p_communication(config, [SHAPE], [SHAPE])
    os._exit(0)


def main():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with tempfile.TemporaryDirectory() as folder:
            context = mp.get_context("spawn")
            ranks = [context.Process(target=worker, args=(rank, folder, dtype)) for rank in range(WORLD)]
            for one in ranks:
                one.start()
            for one in ranks:
                one.join()
            died = any(one.exitcode == -signal.SIGABRT for one in ranks)
            print(
                f"pipeline_dtype {dtype}: {'a process aborted (SIGABRT)' if died else 'the messages went through'}"
            )


if __name__ == "__main__":
    main()
