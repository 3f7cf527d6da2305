"""With a pipeline gradients are those of the microbatches' sum: m times as large as without one.

What: `gradient_accumulation_steps` cuts a batch into m microbatches. Without a pipeline the loss of each is divided by m,
  so that the gradient is that of the batch's mean. With `pp_size` above 1 it is m times as large, under both engines
  ("afab" and "1f1b"). There is no error, and the loss that is logged is divided, so that it is right in the first step.
  AdamW, which train.py uses, hides most of it: not where its epsilon counts, and not from whoever adds clipping, looks
  at gradient norms, or uses another optimizer.
Where: picotron 0.1.0 (commit 59714b1 of August 2025), picotron/pipeline_parallel/pipeline_parallel.py,
  train_step_pipeline_afab (line 107) and train_step_pipeline_1f1b (line 160). The promise is train.py, train_step
  (line 49), which divides.
Why: the backward starts from `F.cross_entropy(…, reduction='mean')`; only `logging_loss` is divided by
  `data_loader.grad_acc_steps`.
Requirement: TRN-3, TRN-12, TRN-22.
Schedules: afab (GPipe), 1f1b.
Known: no thread about this is known.
Possible fix: divide output_tensor by `data_loader.grad_acc_steps` before the backward, and add it to logging_loss as it
  is.

The engine's pipeline waits for CUDA; here it runs on CPU with gloo, for which that call is patched (below). Packages
that are imported and not used here have stand-ins.
"""

import importlib.util
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ.update(GLOO_SOCKET_IFNAME="lo", FLASH_ATTEN="0", DEVICE="cpu", DTYPE="float32", LOCAL_RANK="0")
if not sys.warnoptions:
    warnings.simplefilter("ignore")
for package in ("datasets", "huggingface_hub", "safetensors", "transformers", "wandb"):
    if find_spec(package) is None:
        sys.modules[package] = MagicMock()
if find_spec("flash_attn") is None:
    kernels = ("flash_attn_interface", "layers", "layers.rotary", "ops", "ops.triton", "ops.triton.layer_norm")
    sys.modules.update({f"flash_attn.{name}": MagicMock() for name in kernels}, flash_attn=MagicMock())

import picotron
import picotron.process_group_manager as pgm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from picotron.model import Llama
from picotron.pipeline_parallel import pipeline_parallel

torch.cuda.synchronize = lambda: None

WORLD, SAMPLES, LENGTH = 2, 2, 4
CONFIG = SimpleNamespace(
    vocab_size=16,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=LENGTH,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
)


class Loader:
    """Microbatches as the engine's data loader gives them."""

    def __init__(self, m):
        self.grad_acc_steps, self.generator = m, torch.Generator().manual_seed(1)

    def __next__(self):
        tokens = torch.randint(CONFIG.vocab_size, (SAMPLES, LENGTH + 1), generator=self.generator)
        positions = torch.arange(LENGTH).expand(SAMPLES, LENGTH)
        return {"input_ids": tokens[:, :-1], "target_ids": tokens[:, 1:], "position_ids": positions}


def train_script():
    """The functions of train.py, which lies beside the package."""
    path = Path(next(iter(picotron.__path__))).parent / "train.py"
    spec = importlib.util.spec_from_file_location("train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    pgm.setup_process_group_manager(tp_size=1, cp_size=1, pp_size=WORLD, dp_size=1)
    device, lines = torch.device("cpu"), []
    torch.manual_seed(0)
    whole = Llama(CONFIG)
    stage = pipeline_parallel.PipelineParallel(Llama(CONFIG), CONFIG)
    stage.load_state_dict({name: whole.state_dict()[name] for name in stage.state_dict()})
    without_pipeline = train_script().train_step
    for m in (1, 4):
        whole.zero_grad()
        loss = without_pipeline(whole, Loader(m), device)
        right = torch.cat([dict(whole.named_parameters())[n].grad.flatten() for n, _ in stage.named_parameters()])
        lines.append(f"m = {m}, without a pipeline: loss {loss:.4f}, norm of the stage's gradient {right.norm():.4f}")
        for name in ("afab", "1f1b"):
            step = getattr(pipeline_parallel, f"train_step_pipeline_{name}")
            stage.zero_grad()
            loss = step(stage, Loader(m), (SAMPLES, LENGTH, CONFIG.hidden_size), device, torch.float32)
            found = torch.cat([p.grad.flatten() for p in stage.parameters()])
            ratio = found.norm() / right.norm()
            direction = "the same" if torch.allclose(found / ratio, right, atol=1e-6) else "another"
            logged = f"logged loss {loss:.4f}, " if rank == WORLD - 1 else ""
            lines.append(f"  {name}: {logged}gradient {ratio:.3f} times as large, its direction {direction}")
    Path(folder, f"{rank}.txt").write_text("\n".join(lines))
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        for rank in range(WORLD):
            print(f"rank {rank}")
            print(Path(folder, f"{rank}.txt").read_text())


if __name__ == "__main__":
    main()
