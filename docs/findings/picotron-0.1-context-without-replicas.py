"""With context parallelism and one replica, gradients are not reduced, and the first checkpoint ends the training.

What: with `cp_size` above 1 every rank has a part of each sequence, so that the gradient is the mean over these ranks.
  With `dp_size` 1 it stays that of the rank's own part: the ranks train apart, without an error, and the loss that is
  logged is the mean of models that differ. When a checkpoint is due, training ends in an AttributeError. With two
  replicas both are right.
Where: picotron 0.1.0 (commit 59714b1 of August 2025), train.py (line 192): `DataParallelBucket` wraps the model
  `if pgm.process_group_manager.dp_world_size > 1`; picotron/checkpoint.py, CheckpointManager.save_checkpoint
  (line 264): `model.module if self.cp_dp_world_size > 1`. The promise is the README's "4D parallelism (Data, Tensor,
  Pipeline, Context parallel)".
Why: the wrapper reduces over the ranks of `cp_dp_group`, and everything else asks for `cp_dp_world_size`; train.py asks
  for the number of replicas alone.
Requirement: none (context parallelism is not claimed; near DPC-1, LIF-10).
Schedules: without a pipeline, as here; with one, by reading.
Known: no thread about this is known.
Possible fix: wrap the model if `cp_dp_world_size` is above 1.

train.py is run as it is, on CPU with gloo, for which two calls are patched (below). Packages that are imported and not
used here have stand-ins; the data set is a list of tokens.
"""

import contextlib
import json
import os
import runpy
import socket
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

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
os.environ.update(FLASH_ATTEN="0", LOCAL_RANK="0")

import picotron
import torch
import torch.multiprocessing as mp
import transformers
from picotron import checkpoint, data, utils

LENGTH, STEPS, NAME = 8, 3, "llama"
SIZES = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16}
MODEL = {
    **SIZES,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


class TorchOnCpu(ModuleType):
    """``torch`` for the engine's count of parameters, which is made on a CUDA device."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def tensor(self, *given, device=None, **options):
        return torch.tensor(*given, **options)


class Texts:
    """A data set that is tokenized already."""

    column_names = ("text",)

    def map(self, *_, **__):
        tokens = torch.randint(
            SIZES["vocab_size"], (64, LENGTH + 1), generator=torch.Generator().manual_seed(1)
        )
        return [{"input_ids": row} for row in tokens.tolist()]


class Weights:
    """A file of weights; the engine makes new values after it has read them."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def keys(self):
        return []

    def get_tensor(self, name):
        h, i = SIZES["hidden_size"], SIZES["intermediate_size"]
        if "norm" in name:
            return torch.zeros(h)
        shapes = {"embed_tokens": (SIZES["vocab_size"], h), "down": (h, i), "up": (i, h), "gate": (i, h)}
        return torch.zeros(next((shape for part, shape in shapes.items() if part in name), (h, h)))


def patch():
    torch.cuda.synchronize = lambda: None
    utils.torch = TorchOnCpu("torch")
    data.AutoTokenizer = SimpleNamespace(from_pretrained=lambda name: None)
    data.load_dataset = lambda *_, **__: Texts()
    checkpoint.safe_open = lambda *_, **__: Weights()
    transformers.AutoConfig = SimpleNamespace(from_pretrained=lambda name: SimpleNamespace(**MODEL))


def config(sizes, save_frequency):
    return {
        "distributed": {"tp_size": 1, "pp_size": 1, "pp_engine": "1f1b", "use_cpu": True, **sizes},
        "model": {"name": NAME, "use_fused_adam": False},
        "training": {
            "seed": 0,
            "learning_rate": 0.01,
            "total_train_steps": STEPS,
            "seq_length": LENGTH,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_tokens": None,
        },
        "dataset": {"name": NAME, "num_workers": 0, "num_proc": 1},
        "checkpoint": {"save_dir": "saved", "save_frequency": save_frequency, "load_path": ""},
        "logging": {"use_wandb": False},
        "environment": {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "FLASH_ATTEN": "0",
            "HF_TOKEN": "",
        },
    }


def worker(rank, folder, world, port):
    os.chdir(folder)
    torch.set_num_threads(1)
    patch()
    os.environ.update(
        GLOO_SOCKET_IFNAME="lo",
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
    )
    script = Path(next(iter(picotron.__path__))).parent / "train.py"
    sys.argv = [str(script), "--config", "config.json"]
    found = {}
    try:
        with contextlib.redirect_stdout(None):
            model = runpy.run_path(str(script), run_name="__main__")["model"]
        found["parameters"] = torch.cat([p.detach().flatten() for p in model.parameters()])
    except AttributeError as error:
        found["raised"] = f"AttributeError: {error}"
    except RuntimeError:  # in a message to a rank that has ended
        found["raised"] = "loses its neighbour"
    torch.save(found, f"{rank}.pt")
    os._exit(0)


def trained(sizes, *, save_frequency=1000):
    """What every rank has at the end."""
    world = sizes["cp_size"] * sizes["dp_size"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config(sizes, save_frequency)))
        downloaded = Path(folder, "hf_model", NAME, "config.json")
        downloaded.parent.mkdir(parents=True)
        downloaded.touch()
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        mp.spawn(worker, (folder, world, port), nprocs=world)
        return [torch.load(Path(folder, f"{rank}.pt")) for rank in range(world)]


def main():
    print(f"parameters after {STEPS} steps of AdamW with a rate of 0.01")
    for dp in (1, 2):
        whole = None
        for cp in (1, 2):
            found = [one["parameters"] for one in trained({"cp_size": cp, "dp_size": dp})]
            whole = found[0] if whole is None else whole
            apart = max(float((one - found[0]).abs().max()) for one in found)
            wrong = float((found[0] - whole).abs().mean())
            said = "equal on all ranks" if apart == 0 else "different on two ranks"
            right = (
                "as without context parallelism" if wrong < 1e-4 else "other than without context parallelism"
            )
            print(f"  dp_size {dp}, cp_size {cp}: {said}, {right}")
    print("and with a checkpoint after each step")
    for sizes in ({"cp_size": 1, "dp_size": 2}, {"cp_size": 2, "dp_size": 1}):
        for rank, one in enumerate(trained(sizes, save_frequency=1)):
            told = one.get("raised", "trained to the end")
            print(f"  dp_size {sizes['dp_size']}, cp_size {sizes['cp_size']}, rank {rank}: {told}")


if __name__ == "__main__":
    main()
