"""Where the store for weight gradients is not supported, a step ends in "Pop empty queue".

What: with `--enable-zero-bubble` and `--transformer-impl transformer_engine`, which is Megatron-LM's default, arguments
  are accepted, a schedule with W is made, and the first W finds nothing to compute: the first step ends in an
  exception. The schedules with whole backwards are right.
Where: sail-sg/zero-bubble-pipeline-parallelism at 39f2c186 (May 2025, megatron-core 0.9.0rc0),
  megatron/core/zbpp_utils.py, WeightGradStore.flush (line 254) and pop (line 264).
Why: split_bw() is false where the store is not supported. flush then puts nothing into the queue, but the runtime calls
  pop for every W, whatever is supported.
Why it is one: is_supported says "If not supported, fallback to original schedule". Nothing falls back.
Requirement: none (the adapter sets what the store asks for; near SCH-1).
Schedules: ZB1P, ZB2P, ZBV, V-Half, V-Min (run here: 1F1B and ZB1P on two ranks).
Known: https://github.com/sail-sg/zero-bubble-pipeline-parallelism/issues/72 (closed) has the same exception.
Possible fix: refuse the arguments, or leave W out of the schedule where is_supported() is false.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which calls are patched, and packages of kernels
that are not used have stand-ins (below).
"""

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
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
from torch import nn

empty, isend, irecv, kept = torch.empty, dist.isend, dist.irecv, []


def keep(work):
    kept.append(work)
    return work


def keep_messages():
    """Keep what gloo needs until a message is through: the runtime drops it."""
    dist.isend = lambda tensor, dst, group: keep(isend(tensor.detach(), dst=dst, group=group))
    dist.irecv = lambda tensor, src, group: keep(irecv(tensor, src=src, group=group))


if not torch.cuda.is_available():
    torch.cuda.nvtx.range = lambda _: lambda function: function
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda: None
    torch.cuda.FloatTensor = torch.FloatTensor
    torch.Tensor.cuda = lambda tensor: tensor
    torch.empty = lambda *size, device=None, **options: empty(*size, **options)

import pretrain_gpt
from megatron.core import num_microbatches_calculator as calculator
from megatron.core import parallel_state, timers, zbpp_utils
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.pipeline_parallel.zerobubble import runtime
from megatron.core.transformer import TransformerConfig
from megatron.training import global_vars

WORLD, WIDTH = 2, 4
MICROBATCHES = 3
ZB = {"enable_zero_bubble": True, "zero_bubble_max_pending_backward": WORLD}
RUNS = {
    "1F1B, local": {},
    "1F1B, transformer_engine": {"transformer_impl": "transformer_engine"},
    "ZB1P, local": ZB,
    "ZB1P, transformer_engine": {**ZB, "transformer_impl": "transformer_engine"},
}
pretrain_gpt.get_batch = next  # the loader that the runtime asks for microbatches


class Stage(nn.Module):
    def __init__(self, layer, config):
        super().__init__()
        self.layer, self.config, self.model_type = layer, config, ModelType.encoder_or_decoder

    def set_input_tensor(self, tensors):
        self.received = tensors[0]

    def forward(self, x):
        return self.layer(x if self.received is None else self.received) + 0


def forward_step(data, stage):
    microbatch = data.pop() if data is pretrain_gpt.DataLoaderStore else next(data)
    return stage(microbatch), lambda output: (loss_of(output), 1)


def loss_of(output):
    return output.square().mean()


def arguments(chosen):
    found = zbpp_utils.add_zero_bubble_args(argparse.ArgumentParser()).parse_args([])
    facts = {
        **dict.fromkeys(("profile", "cpu_offload", "enable_exactly_numeric_match", "paired_barrier"), False),
        **{"enable_zb_runtime": True, "num_seq_splits": 1, "pre_communication_optimization": False},
        **{"hidden_size": WIDTH, "seq_length": 1, "num_attention_heads": 1, "interleave_group_size": WORLD},
        **{"pipeline_model_parallel_size": WORLD, "overlap_grad_reduce": False},
        **{"gradient_accumulation_fusion": True, "transformer_impl": "local", **chosen},
    }
    found.__dict__.update(facts)
    return found


def train(rank, name, chosen):
    global_vars.set_args(arguments(chosen))
    runtime.schedule_cache = runtime.shed_node_runtime = None
    # past the messages that begin a training, which are for NCCL
    runtime.ScheduleTimers.iter_counter, zbpp_utils.WeightGradStore.weight_grad_queue = 1, None
    config = TransformerConfig(
        num_layers=WORLD,
        num_layers_without_padding=WORLD,
        num_attention_heads=1,
        hidden_size=WIDTH,
        pipeline_model_parallel_size=WORLD,
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=True,
        batch_p2p_comm=False,
    )
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(WORLD)]
    batches = [torch.randn(1, 1, WIDTH) for _ in range(MICROBATCHES)]
    calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR = calculator.ConstantNumMicroBatchesCalculator(
        MICROBATCHES, 1, 1
    )
    try:
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(batches),
            model=Stage(layers[rank], config),
            num_microbatches=MICROBATCHES,
            seq_length=1,
            micro_batch_size=1,
        )
    except Exception as error:
        return f"{name}: {error}\n"
    loss = sum(loss_of(nn.Sequential(*layers)(x)) for x in batches) / MICROBATCHES
    (due,) = torch.autograd.grad(loss, layers[rank].weight)
    right = torch.allclose(layers[rank].weight.grad, due)
    return f"{name}: gradient {'right' if right else 'wrong'}\n"


def worker(rank, folder):
    torch.set_num_threads(1)
    logging.disable()
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    global_vars.set_args(arguments({}))
    keep_messages()
    global_vars._GLOBAL_TIMERS = timers.Timers(0, "minmax")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=WORLD)
    lines = []
    with redirect_stdout(sys.stderr):  # the engine prints its schedules
        for name, chosen in RUNS.items():
            lines.append(train(rank, name, chosen))
    if rank == 0:
        Path(folder, "told.txt").write_text("".join(lines))
    Path(folder, f"done{rank}").touch()
    while not all(Path(folder, f"done{other}").exists() for other in range(WORLD)):
        time.sleep(0.1)  # messages of the last step are still under way
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        print(Path(folder, "told.txt").read_text(), end="")


if __name__ == "__main__":
    main()
