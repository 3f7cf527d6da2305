"""With a pipeline, training ends at the end of an epoch: the last batch is shorter than what is received.

What: the data loader goes through its data again and again, and its last batch has what is left over. Without a
  pipeline that is trained like any other. With one, every message has `micro_batch_size` samples: the next stage
  receives the shorter one into a tensor of full size, with rows that nothing was written to, and the last stage's loss
  raises. The other ranks wait.
Where: picotron 0.1.0 (commit 59714b1 of August 2025), picotron/data.py, MicroBatchDataLoader.__init__ (line 47): no
  `drop_last`; train.py (line 201): `tensor_shapes`, which are the same for the whole training.
Why: shapes are neither sent nor taken from the batch, which every rank has.
Requirement: FWD-24.
Schedules: afab (GPipe), 1f1b.
Known: no thread about this is known.
Possible fix: `drop_last=True`; or the shape of `batch["input_ids"]`, which every rank reads, in place of
  `tensor_shapes`.

The engine's pipeline waits for CUDA; here it runs on CPU with gloo, for which that call is patched (below). Packages
that are imported and not used here have stand-ins; the data set is a list of tokens.
"""

import importlib.util
import os
import sys
import tempfile
import threading
import time
import warnings
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ.update(GLOO_SOCKET_IFNAME="lo", FLASH_ATTEN="0", DEVICE="cpu", DTYPE="float32", LOCAL_RANK="0")
if not sys.warnoptions:
    warnings.simplefilter("ignore")
if any(
    find_spec(name) is None
    for name in ("datasets", "huggingface_hub", "safetensors", "transformers", "wandb")
):
    downloads = ("datasets", "huggingface_hub", "safetensors", "transformers", "wandb")
    sys.modules.update({name: MagicMock() for name in downloads if find_spec(name) is None})
if find_spec("flash_attn") is None:
    kernels = (
        "flash_attn_interface",
        "layers",
        "layers.rotary",
        "ops",
        "ops.triton",
        "ops.triton.layer_norm",
    )
    sys.modules.update({f"flash_attn.{name}": MagicMock() for name in kernels}, flash_attn=MagicMock())

import picotron
import picotron.process_group_manager as pgm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from picotron import data
from picotron.model import Llama
from picotron.pipeline_parallel import pipeline_parallel

torch.cuda.synchronize = lambda: None

WORLD, SAMPLES, LENGTH, STEPS = 2, 2, 4, 3
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
CPU = torch.device("cpu")


class Texts:
    """A data set that is tokenized already."""

    column_names = ("text",)

    def __init__(self, size):
        self.size = size

    def map(self, *_, **__):
        tokens = torch.randint(CONFIG.vocab_size, (self.size, LENGTH + 1), generator=torch.manual_seed(1))
        return [{"input_ids": row} for row in tokens.tolist()]


data.AutoTokenizer = SimpleNamespace(from_pretrained=lambda name: None)
data.load_dataset = lambda size, **_: Texts(size)
data.print = lambda *_, **__: None


def loader(size):
    return data.MicroBatchDataLoader(
        micro_batch_size=SAMPLES,
        seq_length=LENGTH,
        dataset_name=size,
        tokenizer_name="",
        num_workers=0,
        num_proc=1,
        grad_acc_steps=1,
        device=CPU,
        pin_memory=False,
    )


def train_script():
    """The functions of train.py, which lies beside the package."""
    path = Path(next(iter(picotron.__path__))).parent / "train.py"
    spec = importlib.util.spec_from_file_location("train", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_pipeline(size):
    """Train as train.py does with one rank, and say how it went."""
    model, batches = Llama(CONFIG), loader(size)
    for _ in range(STEPS):
        train_script().train_step(model, batches, CPU)
    return f"{STEPS} steps done"


def with_pipeline(name, size):
    """Train one rank's part of the pipeline, and say how it went; a step that takes 5 seconds is not waited for."""
    stage, batches = pipeline_parallel.PipelineParallel(Llama(CONFIG), CONFIG), loader(size)
    step, said = getattr(pipeline_parallel, f"train_step_pipeline_{name}"), []

    def one_step():
        try:
            step(stage, batches, (SAMPLES, LENGTH, CONFIG.hidden_size), CPU, torch.float32)
        except ValueError as error:
            said.append(f"ValueError: {error}")

    for number in range(1, STEPS + 1):
        running = threading.Thread(target=one_step, daemon=True)
        running.start()
        running.join(5)
        if running.is_alive():
            return f"step {number} waits"
        if said:
            return f"step {number} raises {said[0]}"
    return f"{STEPS} steps done"


def worker(rank, folder, name, size):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    single = name == "no pipeline"
    pgm.setup_process_group_manager(
        tp_size=1, cp_size=1, pp_size=1 if single else WORLD, dp_size=WORLD if single else 1
    )
    said = without_pipeline(size * WORLD) if single else with_pipeline(name, size)
    Path(folder, f"{rank}.txt").write_text(said)
    while len(list(Path(folder).glob("?.txt"))) < WORLD:
        time.sleep(0.1)
    os._exit(0)


def main():
    for size in (4, 5):
        print(f"{size} samples, {SAMPLES} in a batch, {STEPS} steps")
        for name in ("no pipeline", "afab", "1f1b"):
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(worker, (folder, name, size), nprocs=WORLD)
                for rank in range(WORLD):
                    print(f"  {name}, rank {rank}: {Path(folder, f'{rank}.txt').read_text()}")


if __name__ == "__main__":
    main()
