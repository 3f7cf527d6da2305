"""With variable_seq_lengths the runtime receives every microbatch into memory of one shape.

What: `variable_seq_lengths` is for microbatches of several lengths. The runtime takes it and receives all of them into
  new tensors of the shape that it is called with. A shorter one is followed by what was in that memory before, and the
  next stage computes on both. Nothing is raised in an evaluation. A training step gives wrong gradients where outputs
  are freed, as the training script has it, and the shapes fit each other, as here; else the rank before raises. The
  schedules of Megatron-LM in the same fork are right.
Where: sail-sg/zero-bubble-pipeline-parallelism at 39f2c186 (May 2025, megatron-core 0.9.0rc0),
  megatron/core/pipeline_parallel/zerobubble/runtime.py, TrainingIteration.flush (lines 708 and 717).
Why: flush makes its tensors by conf.tensor_shape; the shapes are communicated in p2p_communication._communicate, which
  it does not use.
Why it is one: ModelParallelConfig of the fork says of the argument that it is "Support for variable sequence lengths
  across microbatches. Setting this communicates the size of tensors during pipeline parallelism communication".
Requirement: FWD-2, FWD-24 where microbatches of a step have different sizes.
Schedules: all of the runtime (run here: 1F1B, ZB1P and ZBV, on two ranks).
Known: no thread about this is known.
Possible fix: communicate the shapes in flush, too, or refuse the argument.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which calls are patched, and packages of kernels
that are not used have stand-ins (below).
"""

import argparse
import logging
import os
import sys
import tempfile
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
TRAINED, EVALUATED = (2, 1, 2), (3, 2, 3)  # the lengths of the microbatches
RUNS = {
    "Megatron-LM's 1F1B": {"enable_zb_runtime": False},
    "the runtime's 1F1B": {},
    "ZB1P": {"enable_zero_bubble": True, "zero_bubble_max_pending_backward": WORLD},
    "ZBV": {"enable_zero_bubble": True, "zero_bubble_v_schedule": True},
}
seen = {}
pretrain_gpt.get_batch = next  # the loader that the runtime asks for microbatches


class Stage(nn.Module):
    def __init__(self, index, layer, config):
        super().__init__()
        self.index, self.layer = index, layer
        self.config, self.model_type = config, ModelType.encoder_or_decoder

    def set_input_tensor(self, tensors):
        self.received = tensors[0]

    def forward(self, x):
        given = x if self.received is None else self.received
        seen.setdefault(self.index, []).append(len(given))
        return self.layer(given) + 0


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
    args = arguments(chosen)
    global_vars.set_args(args)
    if args.enable_zb_runtime:
        keep_messages()
    runtime.schedule_cache = runtime.shed_node_runtime = None
    # past the messages that begin a training, which are for NCCL
    runtime.ScheduleTimers.iter_counter, zbpp_utils.WeightGradStore.weight_grad_queue = 1, None
    v = 2 if args.zero_bubble_v_schedule else 1
    parallel_state.set_virtual_pipeline_model_parallel_world_size(v if v > 1 else None)
    parallel_state.set_virtual_pipeline_model_parallel_rank(0 if v > 1 else None)
    config = TransformerConfig(
        num_layers=WORLD * v,
        num_layers_without_padding=WORLD * v,
        num_attention_heads=1,
        hidden_size=WIDTH,
        pipeline_model_parallel_size=WORLD,
        virtual_pipeline_model_parallel_size=v if v > 1 else None,
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=args.enable_zb_runtime,
        batch_p2p_comm=False,
        deallocate_pipeline_outputs=True,  # as its training has it
        variable_seq_lengths=True,
    )
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(WORLD * v)]
    mine = [rank] if v == 1 else [rank, 2 * WORLD - 1 - rank]
    stages = [Stage(s, layers[s], config) for s in mine]
    lines = [f"{name}\n"]
    for lengths in (TRAINED, EVALUATED):
        batches = [torch.randn(length, 1, WIDTH) for length in lengths]
        iterators = [iter(batches) for _ in mine]
        number = calculator.ConstantNumMicroBatchesCalculator(len(lengths), 1, 1)
        calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR = number
        evaluates = lengths is EVALUATED
        seen.clear()
        with torch.set_grad_enabled(not evaluates):
            get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iterators if v > 1 else iterators[0],
                model=stages if v > 1 else stages[0],
                num_microbatches=len(lengths),
                seq_length=max(lengths),
                micro_batch_size=1,
                forward_only=evaluates,
            )
        if rank == WORLD - 1:
            lines.append(f"  {'evaluation' if evaluates else 'training'} of lengths {lengths}: ")
            lines.append(f"rank {rank} computed on lengths {tuple(seen[mine[0]])}\n")
            if not evaluates:
                loss = sum(loss_of(nn.Sequential(*layers)(x)) for x in batches) / len(lengths)
                (due,) = torch.autograd.grad(loss, layers[rank].weight)
                right = torch.allclose(layers[rank].weight.grad, due)
                lines.append(f"    the gradient of stage {rank} is {'right' if right else 'wrong'}\n")
    return lines


def worker(rank, folder):
    torch.set_num_threads(1)
    logging.disable()
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    global_vars.set_args(arguments({}))
    global_vars._GLOBAL_TIMERS = timers.Timers(0, "minmax")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=WORLD)
    lines = []
    with redirect_stdout(sys.stderr):  # the engine prints its schedules
        for name, chosen in RUNS.items():
            lines += train(rank, name, chosen)
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
