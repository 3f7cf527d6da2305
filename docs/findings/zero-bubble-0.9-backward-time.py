"""A whole backward is timed as its input part alone, and messages of 1F1B-V are placed by that.

What: messages are put into a schedule by the times at which computations begin and end. A whole backward (BW) is given
  the time of the backward for inputs, without that for weights. Under 1F1B-V receives then stand at other places than
  they do when the same time is given as one part.
Where: sail-sg/zero-bubble-pipeline-parallelism at 39f2c186 (May 2025, megatron-core 0.9.0rc0),
  megatron/core/pipeline_parallel/zerobubble/scheduler/passes.py, add_time (line 107).
Why: `config.cost_b + config.cost_w` are two lists with a cost for each stage; + puts the second behind the first, and
  the first is found by the number of the stage.
Why it is one: GraphConfig.get_cost of the same package says that BW takes the sum of both.
Requirement: none (orders are legal, and results right; near SCH-6).
Schedules: 1F1B, 1F1B-V (grouped interleaved 1F1B has no BW).
Known: no thread about this is known.
Possible fix: add the costs stage by stage, or call get_cost.

The schedulers are plain Python; packages of kernels that the engine imports have stand-ins (below).
"""

import sys
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch

if not sys.warnoptions:
    warnings.simplefilter("ignore")
KERNELS = (
    *("apex", "apex.optimizers", "apex.multi_tensor_apply", "amp_C", "pynvml"),
    *("flash_attn", "flash_attn.flash_attn_interface", "fused_weight_gradient_mlp_cuda"),
)
sys.modules.update({name: MagicMock() for name in KERNELS if find_spec(name.partition(".")[0]) is None})
if not torch.cuda.is_available():
    torch.cuda.nvtx.range = lambda _: lambda function: function

from megatron.core.pipeline_parallel.zerobubble.scheduler import basic1f1b, run_schedule_passes, v1f1b
from megatron.core.pipeline_parallel.zerobubble.scheduler.graph import BW, GraphConfig
from megatron.training import global_vars

RANKS, MICROBATCHES = range(2, 7), 2  # twice as many microbatches as ranks


def made(scheduler, p, v, *, backward, weights):
    config = GraphConfig.basic_config(1000.0, backward, weights, p, MICROBATCHES * p, v)
    with redirect_stdout(sys.stderr):  # the engine prints its schedules
        return config, run_schedule_passes(config, scheduler.create_schedule(config))


def main():
    global_vars.set_args(SimpleNamespace(num_seq_splits=1))
    for name, scheduler, v in (("1F1B", basic1f1b, 1), ("1F1B-V", v1f1b, 2)):
        differ, lasts = 0, set()
        for p in RANKS:
            config, parts = made(scheduler, p, v, backward=1000.0, weights=1000.0)
            _, whole = made(scheduler, p, v, backward=2000.0, weights=0.0)
            lasts |= {n.completion_time - n.start_time for nodes in parts for n in nodes if n.type is BW}
            orders = [[[(n.type, n.get_key()) for n in nodes] for nodes in one] for one in (parts, whole)]
            differ += orders[0] != orders[1]
        said, found = config.get_cost(0, BW), ", ".join(f"{one:.0f}" for one in sorted(lasts))
        print(f"{name}: get_cost says {said:.0f} for a whole backward; in the schedule it lasts {found}")
        print(
            f"  with the same time in one part, orders differ for {differ} of {len(RANKS)} numbers of ranks"
        )


if __name__ == "__main__":
    main()
