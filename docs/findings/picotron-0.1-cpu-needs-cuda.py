"""use_cpu, which the README shows for a pipeline, needs a GPU.

What: the README's quick start has a section "CPU (expect it to be slow)", whose example has a pipeline. On a machine
  without CUDA it ends three times in an error: kernels are imported that need CUDA to be built, parameters are counted
  on a CUDA device, and the pipeline waits for one after every message. Without the three, it trains.
Where: picotron 0.1.0 (commit 59714b1 of August 2025), picotron/model.py (line 7): `from flash_attn…`;
  picotron/utils.py, get_num_params (line 75): `device='cuda'`; picotron/pipeline_parallel/pp_communications.py
  (lines 30 and 44): `torch.cuda.synchronize()`. The last stands in context_parallel/cp_communications.py, too.
Why: `use_cpu` chooses gloo, the device of the model and torch's attention, and nothing else asks for it.
Requirement: none (the adapter leaves the call out).
Schedules: afab (GPipe), 1f1b; the first two without a pipeline, too.
Known: no thread about this is known.
Possible fix: import the kernels where they are used; count on the CPU; wait for CUDA if the tensors are there.

train.py is run as it is, on CPU with gloo. Packages that are imported and not used here have stand-ins; the data set is
a list of tokens.
"""

import contextlib
import json
import os
import runpy
import socket
import sys
import tempfile
import traceback
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
os.environ.update(FLASH_ATTEN="0", LOCAL_RANK="0")

import picotron
import torch
import torch.multiprocessing as mp
import transformers

WORLD, LENGTH, NAME = 2, 8, "llama"
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


def give_data():
    """What is downloaded."""
    from picotron import checkpoint, data

    data.AutoTokenizer = SimpleNamespace(from_pretrained=lambda name: None)
    data.load_dataset = lambda *_, **__: Texts()
    checkpoint.safe_open = lambda *_, **__: Weights()
    transformers.AutoConfig = SimpleNamespace(from_pretrained=lambda name: SimpleNamespace(**MODEL))


def without_kernels():
    names = ("flash_attn_interface", "layers", "layers.rotary", "ops", "ops.triton", "ops.triton.layer_norm")
    sys.modules.update({f"flash_attn.{name}": MagicMock() for name in names}, flash_attn=MagicMock())


def counting_on_cpu():
    from picotron import utils

    utils.torch = TorchOnCpu("torch")


def without_waiting():
    torch.cuda.synchronize = lambda: None


PATCHES = (without_kernels, counting_on_cpu, without_waiting)


def config():
    return {
        "distributed": {
            "tp_size": 1,
            "cp_size": 1,
            "pp_size": WORLD,
            "dp_size": 1,
            "pp_engine": "1f1b",
            "use_cpu": True,
        },
        "model": {"name": NAME, "use_fused_adam": False},
        "training": {
            "seed": 0,
            "learning_rate": 0.0,
            "total_train_steps": 1,
            "seq_length": LENGTH,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_tokens": None,
        },
        "dataset": {"name": NAME, "num_workers": 0, "num_proc": 1},
        "checkpoint": {"save_dir": "saved", "save_frequency": 1000, "load_path": ""},
        "logging": {"use_wandb": False},
        "environment": {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "FLASH_ATTEN": "0",
            "HF_TOKEN": "",
        },
    }


def worker(rank, folder, num_patches, port):
    os.chdir(folder)
    torch.set_num_threads(1)
    os.environ.update(
        GLOO_SOCKET_IFNAME="lo",
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(WORLD),
    )
    script = Path(next(iter(picotron.__path__))).parent / "train.py"
    sys.argv = [str(script), "--config", "config.json"]
    try:
        for patch in PATCHES[:num_patches]:
            patch()
        give_data()
        with contextlib.redirect_stdout(None):
            runpy.run_path(str(script), run_name="__main__")
        said = "trained to the end"
    except (ImportError, AssertionError, RuntimeError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = [frame for frame in frames if f"{os.sep}picotron{os.sep}" in frame.filename][-1]
        place = f"{Path(where.filename).name}, line {where.lineno}: {where.line}"
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}\n    {place}"
    Path(f"{rank}.txt").write_text(said)
    os._exit(0)


def told(num_patches):
    """How training went on the first rank."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config()))
        downloaded = Path(folder, "hf_model", NAME, "config.json")
        downloaded.parent.mkdir(parents=True)
        downloaded.touch()
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        mp.spawn(worker, (folder, num_patches, port), nprocs=WORLD)
        return Path(folder, "0.txt").read_text()


def main():
    for num_patches in range(len(PATCHES) + 1):
        names = ", ".join(patch.__name__.replace("_", " ") for patch in PATCHES[:num_patches])
        print(f"use_cpu, pp_size {WORLD}{', ' if names else ''}{names}")
        print(f"  {told(num_patches)}")


if __name__ == "__main__":
    main()
