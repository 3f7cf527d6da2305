"""Whole parameters, zeros, broadcast state dicts and comparisons, under whatever wraps a module."""

from __future__ import annotations

from pipeconform import run_on_ranks
from tests.facts import tells


def _modules():
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    mesh = init_device_mesh("cpu", (2,))
    compiled = model()
    compiled[0] = torch.compile(compiled[0], backend="eager")
    return {
        "plain": model(),
        "compiled part": compiled,
        "DDP": DistributedDataParallel(model()),
        "fully_shard": fully_shard(model(), mesh=mesh),
        "FSDP": FullyShardedDataParallel(model(), use_orig_params=True, device_id=torch.device("cpu")),
    }


def _gathered_and_zeroed():
    import warnings

    from pipeconform.wrapper_tools import assert_equal_states, full_parameters, zero

    warnings.simplefilter("ignore")
    found = {}
    for name, module in _modules().items():
        before = {n: tuple(p.shape) for n, p in full_parameters(module).items()}
        some = any(float(p.abs().sum()) for p in full_parameters(module).values())
        assert_equal_states(module)
        zero(module, buffers=True)
        after = sum(float(p.abs().sum()) for p in full_parameters(module).values())
        found[name] = (before, some, after, sum(float(b.sum()) for b in module.buffers()))
    return found


def test_parameters_are_whole_by_their_own_names_and_become_zero_under_every_wrapper() -> None:
    due = {"0.weight": (3, 4), "0.bias": (3,), "1.weight": (3,), "1.bias": (3,)}
    for found in run_on_ranks(_gathered_and_zeroed, ranks=2).values:
        assert list(found) == ["plain", "compiled part", "DDP", "fully_shard", "FSDP"]
        for name, seen in found.items():
            assert seen == (due, True, 0.0, 0.0), name


def _flat_only():
    import warnings

    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel

    from pipeconform.errors import UsageError
    from pipeconform.wrapper_tools import full_parameters

    warnings.simplefilter("ignore")
    module = FullyShardedDataParallel(nn.Linear(2, 2), use_orig_params=False, device_id=torch.device("cpu"))
    try:
        full_parameters(module)
    except UsageError as error:
        return str(error)
    return ""


def test_flat_parameters_have_no_names() -> None:
    for told in run_on_ranks(_flat_only, ranks=2).values:
        assert "use_orig_params=True" in told


def _one_bit():
    import torch
    import torch.distributed as dist
    from torch import nn

    from pipeconform.wrapper_tools import assert_equal_states

    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.fill_(1)
        module.bias.fill_(float("nan"))
        assert_equal_states(module)
        module.weight[1, 0] += dist.get_rank() * 2.0**-23
    try:
        assert_equal_states(module)
    except AssertionError as error:
        return str(error)
    return ""


def test_one_bit_on_one_rank_is_told_to_all_and_a_nan_equals_itself() -> None:
    for told in run_on_ranks(_one_bit, ranks=2).values:
        assert tells(told, "weight", "rank 1", "differs from rank 0", "1 of 4 elements")
        assert tells(told, "first [1, 0]", "1.0000001192092896", "instead of 1.0")
        assert "bias" not in told


def _sent():
    import torch
    import torch.distributed as dist

    from pipeconform.errors import UsageError
    from pipeconform.wrapper_tools import broadcast_state_dict

    rank = dist.get_rank()
    own = {"a": torch.full((2, 3), 1.5, dtype=torch.bfloat16).t(), "step": 7, "n": torch.tensor(3)}
    got = broadcast_state_dict(own if rank == 1 else None, source=1)
    told = ""
    if rank == 0:
        try:
            broadcast_state_dict(None)
        except UsageError as error:
            told = str(error)
    same = bool((got["a"] == own["a"]).all()) and got["a"].dtype == torch.bfloat16
    return same, got["step"], got["n"].item(), got["a"] is not own["a"], told


def test_a_state_dict_comes_from_one_rank_with_dtypes_and_what_is_no_tensor() -> None:
    first, second = run_on_ranks(_sent, ranks=2).values

    assert first[:4] == second[:4] == (True, 7, 3, True)
    assert tells(first[4], "broadcast_state_dict", "rank 0", "source", "no state dict")
