"""With a pipeline, layers of different ranks begin with the same weights.

What: without a pipeline every layer has random weights of its own. With one, every rank begins to draw those of its
  layers in one of two states of the random generator: layers of the last rank have bit by bit the weights of the first
  rank's, and those of all ranks between them have each other's. With two ranks, half of a model is a copy of the other
  half. There is no error; layers that are to learn different things begin alike.
Where: picotron 0.1.0 (commit 59714b1 of August 2025), train.py (line 103): `set_all_seed(config["training"]["seed"])`
  on every rank; picotron/checkpoint.py, init_model_with_materialized_weights (line 111), which makes all weights anew,
  on the CPU, also where some were downloaded.
Why: the seed does not depend on the pipeline rank. The first rank draws its embedding before its layers and the last
  one a projection of as many numbers; the others draw nothing before.
Requirement: none (the engine's own models are not claimed).
Schedules: afab (GPipe), 1f1b.
Known: no thread about this is known; near picotron#32 (https://github.com/huggingface/picotron/issues/32), open, which
  asks why downloaded weights are made anew.
Possible fix: add the pipeline rank to the seed before weights are made. It must stay equal on tensor-parallel ranks,
  which cut what they draw, and on replicas.

train.py is run as it is, on CPU with gloo, for which two calls are patched (below), and with a rate of 0, so that the
weights stay as they were made. Packages that are imported and not used here have stand-ins; the data set is a list of
tokens.
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

LENGTH, LAYERS, NAME = 8, 8, "llama"
SIZES = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 16}
MODEL = {
    **SIZES,
    "num_hidden_layers": LAYERS,
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


def config(num_ranks):
    return {
        "distributed": {
            "tp_size": 1,
            "cp_size": 1,
            "pp_size": num_ranks,
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
    with contextlib.redirect_stdout(None):
        model = runpy.run_path(str(script), run_name="__main__")["model"]
    torch.save(model.state_dict(), f"{rank}.pt")
    os._exit(0)


def made(num_ranks):
    """The weights of all layers, by their numbers, and the rank of each."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config(num_ranks)))
        downloaded = Path(folder, "hf_model", NAME, "config.json")
        downloaded.parent.mkdir(parents=True)
        downloaded.touch()
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        mp.spawn(worker, (folder, num_ranks, port), nprocs=num_ranks)
        weights, ranks = {}, {}
        for rank in range(num_ranks):
            for name, value in torch.load(Path(folder, f"{rank}.pt")).items():
                if name.endswith("q_proj.weight"):
                    layer = int(name.split(".")[1])
                    weights[layer], ranks[layer] = value, rank
        return weights, ranks


def main():
    for num_ranks in (1, 2, 4):
        weights, ranks = made(num_ranks)
        print(f"pp_size {num_ranks}, {LAYERS} layers")
        pairs = [(a, b) for a in weights for b in weights if a < b and torch.equal(weights[a], weights[b])]
        for a, b in pairs:
            print(f"  layer {a} of rank {ranks[a]} and layer {b} of rank {ranks[b]} have the same weights")
        if not pairs:
            print("  all layers have weights of their own")


if __name__ == "__main__":
    main()
