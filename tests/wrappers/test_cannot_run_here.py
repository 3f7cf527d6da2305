"""What torch's wrappers have and cannot do on a CPU is really tried; the documentation's table says the same."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

from pipeconform import run_on_ranks
from pipeconform.adapters.torch_wrappers import TorchDdp
from pipeconform.wrapper import WrapperFeature

CPU = torch.device("cpu")
DOCS = Path(__file__).parents[2] / "docs" / "data-parallel.md"


def trained(module):
    module(torch.ones(1, 2)).sum().backward()


def mixed_precision():
    trained(DistributedDataParallel(nn.Linear(2, 2), mixed_precision=_MixedPrecision(torch.bfloat16)))


def bfloat16_hook():
    DistributedDataParallel(nn.Linear(2, 2)).register_comm_hook(None, bf16_compress_hook)


def optimizer_in_backward():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's module warns about itself when it is imported
        from torch.distributed.optim import _apply_optimizer_in_backward
    module = nn.Linear(2, 2)
    _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
    trained(DistributedDataParallel(module))


def sync_batch_norm():
    DistributedDataParallel(nn.SyncBatchNorm(2))


def shards_offloaded():
    trained(fully_shard(nn.Linear(2, 2), offload_policy=CPUOffloadPolicy()))


def fsdp_offloaded():
    offload = CPUOffload(offload_params=True)
    trained(FullyShardedDataParallel(nn.Linear(2, 2), device_id=CPU, cpu_offload=offload))


def fsdp_synchronised():
    FullyShardedDataParallel(nn.Linear(2, 2), device_id=CPU, sync_module_states=True)


def fsdp_without_a_device():
    trained(FullyShardedDataParallel(nn.Linear(2, 2)))


TABLE = {
    mixed_precision: "RuntimeError: cpu backend doesn't support events",
    bfloat16_hook: "TypeError: BF16 all reduce communication hook required",
    optimizer_in_backward: "RuntimeError: Cannot access accelerator device when none is available",
    sync_batch_norm: "ValueError: SyncBatchNorm layers only work with GPU modules",
    shards_offloaded: "RuntimeError: Cannot access accelerator device when none is available",
    fsdp_offloaded: "RuntimeError: Cannot access accelerator device when none is available",
    fsdp_synchronised: "ValueError: ",
    fsdp_without_a_device: "RuntimeError: FSDP needs a non-CPU accelerator device",
}
_DRIVER = "nvidia driver", "cuda driver"
BUILT_WITH_CUDA = {
    **dict.fromkeys((mixed_precision, optimizer_in_backward, shards_offloaded, fsdp_offloaded), _DRIVER),
    bfloat16_hook: ("runs",),  # as far as making the wrapper
}
"""What a build for CUDA says on a machine without a driver, where it differs."""


def tried():
    torch.manual_seed(0)
    found = {}
    for function in TABLE:
        try:
            function()
        except Exception as error:
            found[function.__name__] = f"{type(error).__name__}: {error}"
    return found


@pytest.fixture(scope="module")
def found():
    return run_on_ranks(tried, ranks=2).values


@pytest.mark.parametrize("function", TABLE, ids=lambda function: function.__name__)
def test_what_cannot_run_on_a_cpu_is_an_error(found, function):
    expected = (TABLE[function].lower(),)
    if torch.version.cuda:
        expected = BUILT_WITH_CUDA.get(function, expected)
    for one in found:
        said = one.get(function.__name__, "runs").lower()
        assert any(words in said for words in expected), said


def test_claims_and_documentation_say_what_was_found(found):
    elsewhere = TorchDdp().describe().claims.elsewhere
    page = DOCS.read_text()

    assert elsewhere[WrapperFeature.MIXED_PRECISION] == TABLE[mixed_precision]
    assert elsewhere[WrapperFeature.STEP_IN_BACKWARD] == TABLE[optimizer_in_backward]
    for text in TABLE.values():
        assert text in page


def test_what_a_backend_cannot_do_is_not_claimed_with_it(monkeypatch):
    assert WrapperFeature.SPARSE in TorchDdp().describe().claims.features
    monkeypatch.setenv("PIPECONFORM_DEVICE", "cuda")
    monkeypatch.setenv("PIPECONFORM_BACKEND", "nccl")
    claims = TorchDdp().describe().claims
    assert WrapperFeature.SPARSE not in claims.features
    assert "NCCL" in claims.elsewhere[WrapperFeature.SPARSE]
