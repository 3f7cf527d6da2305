"""Devices are decided as data, for machines that this one is not."""

import dataclasses

import pytest

from pipeconform.errors import UsageError
from pipeconform.ranks.devices import (
    SHARING,
    Devices,
    Machine,
    backend_for,
    backends_in,
    probe,
    require_backend,
    resolve,
)
from pipeconform.ranks.pins import WORKSPACE
from tests.facts import tells

OF_CUDA = {**WORKSPACE, "TORCH_NCCL_ENABLE_TIMING": "1"}
TWO_GPUS = Machine("cuda", count=2, backend="nccl")


def test_the_cpu_takes_any_number_of_ranks():
    devices = resolve("cpu")
    assert devices == Devices(device_type="cpu", backend="gloo", count=None)
    assert devices.assignment(3) == ("cpu", "cpu", "cpu")
    assert devices.reason_against(1000) is None


def test_each_rank_has_its_own_device():
    devices = resolve("cuda", machine=TWO_GPUS)
    assert devices.assignment(2) == ("cuda:0", "cuda:1")
    assert devices.reason_against(2) is None


def test_neighbours_share_a_device_when_asked_to():
    devices = resolve("cuda", ranks_per_device=2, machine=TWO_GPUS)
    assert devices.assignment(4) == ("cuda:0", "cuda:0", "cuda:1", "cuda:1")
    assert devices.reason_against(4) is None
    assert devices.settings({}) == {**OF_CUDA, **SHARING}


def test_sharing_with_gloo_needs_nothing():
    devices = resolve("cuda", backend="gloo", ranks_per_device=2, machine=TWO_GPUS)
    assert (devices.backend, devices.settings({})) == ("gloo", dict(WORKSPACE))


@pytest.mark.parametrize(
    ("ranks_per_device", "world_size", "facts"),
    [
        (1, 3, ("3 ranks", "3 cuda devices", "has 2")),
        (2, 5, ("5 ranks", "3 cuda devices", "2 ranks on each", "has 2")),
    ],
)
def test_too_few_devices_are_a_reason(ranks_per_device, world_size, facts):
    devices = resolve("cuda", ranks_per_device=ranks_per_device, machine=TWO_GPUS)
    remedy = ("--ranks-per-device", "nccl", "NCCL 2.30", "NCCL_MULTI_RANK_GPU_ENABLE=1")
    assert tells(devices.reason_against(world_size), *facts, *remedy)


def test_no_device_is_a_reason_without_a_remedy():
    devices = resolve("cuda", backend="gloo", machine=Machine("cuda", count=0, backend="gloo"))
    reason = devices.reason_against(1)
    assert tells(reason, "1 rank", "1 cuda device", "has 0")
    assert "--ranks-per-device" not in reason


def test_another_kind_of_accelerator_is_as_good():
    devices = resolve("auto", machine=Machine("xpu", count=2, backend="xccl"))
    assert (devices.assignment(2), devices.backend) == (("xpu:0", "xpu:1"), "xccl")


@pytest.mark.parametrize(
    ("kind", "backend"),
    [("xpu", "xccl"), ("npu", "hccl"), ("hpu", "hccl"), ("mps", "gloo"), ("mtia", "mccl")],
)
def test_every_kind_of_device_goes_the_way_of_cuda(kind, backend):
    """What NCCL and cuBLAS need is set for no other; for the rest a device's name is only passed on."""
    devices = resolve(kind, machine=Machine(kind, count=2, backend=backend, names=("one", "other")))
    assert (devices.assignment(2), devices.last) == ((f"{kind}:0", f"{kind}:1"), f"{kind}:1")
    assert (devices.backend, devices.names, devices.settings({})) == (backend, ("one", "other"), {})
    reason = devices.reason_against(3)
    assert tells(reason, "3 ranks", f"3 {kind} devices", "has 2", "--ranks-per-device")
    assert "NCCL" not in reason
    assert resolve(kind, backend=f"cpu:gloo,{kind}:theirs", machine=Machine(kind, 2, None)).backend


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo,cuda:nccl"])
def test_backends_that_torch_has_are_taken(backend):
    require_backend(backend)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (
            "theirs",
            "--backend theirs: torch has no such backend .AssertionError: Unknown backend type theirs",
        ),
        ("cpu:theirs,cuda:nccl", "Unknown c10d backend type THEIRS"),
        ("mpi", "doesn't have MPI built in.*; expected gloo, nccl, or one"),
    ],
)
def test_a_backend_of_which_torch_makes_no_group_is_refused_with_its_error(backend, words):
    with pytest.raises(UsageError, match=words):
        require_backend(backend)


def test_the_names_in_a_backends_name_are_found():
    assert backends_in("gloo") == backends_in("cpu:gloo") == {"gloo"}
    assert backends_in("cpu:gloo,cuda:nccl") == {"gloo", "nccl"}


@pytest.mark.parametrize(
    ("arguments", "machine", "complaint"),
    [
        ({"ranks_per_device": 0}, TWO_GPUS, "at least 1"),
        ({"backend": "nccl"}, Machine("cpu", count=None, backend="gloo"), "nccl needs --device cuda"),
        ({}, Machine("odd", count=1, backend=None), "no default backend"),
        (
            {"backend": "cpu:gloo,cuda:nccl"},
            Machine("odd", count=1, backend=None),
            "has none for --device odd",
        ),
        ({}, Machine("odd", count=0, backend=None, error="what is odd?"), "what is odd"),
    ],
)
def test_what_cannot_be_is_the_users_error(arguments, machine, complaint):
    with pytest.raises(UsageError, match=complaint):
        resolve("auto", machine=machine, **arguments)


def test_a_device_type_torch_does_not_know_is_the_users_error():
    with pytest.raises(UsageError, match="--device abacus"):
        resolve("abacus")


def test_a_vendors_device_without_a_default_backend_works_with_one_that_is_named():
    machine = probe("mtia")  # torch has the type, and registers no backend for it
    assert (machine.error, machine.backend) == (None, None)
    with pytest.raises(UsageError, match="no default backend for it; give --backend"):
        resolve("mtia", machine=machine)
    assert resolve("mtia", backend="theirs", machine=machine).backend == "theirs"


def test_the_backend_of_a_device_is_found_in_a_list_of_backends():
    both = resolve("cuda", backend="cpu:gloo,cuda:nccl", ranks_per_device=2, machine=TWO_GPUS)
    assert both.settings({}) == {**OF_CUDA, **SHARING}
    assert backend_for("cpu:gloo,cuda:nccl", "cpu") == "gloo"
    assert backend_for("nccl", "cuda") == "nccl"


def test_the_machine_is_asked_in_a_process_of_its_own():
    machine = probe("auto")
    assert machine.error is None
    assert machine.backend is not None
    assert probe("auto") is machine


def test_ranks_that_share_a_gpu_get_the_settings_that_nccl_needs_unless_the_user_has_them():
    devices = resolve("cuda", ranks_per_device=2, machine=TWO_GPUS)
    assert devices.settings({}) == {**OF_CUDA, **SHARING}
    assert devices.settings({"NCCL_MAX_CTAS": "8"}) == {
        k: v for k, v in {**OF_CUDA, **SHARING}.items() if k != "NCCL_MAX_CTAS"
    }
    assert resolve("cuda", machine=TWO_GPUS).settings({}) == OF_CUDA
    assert resolve("cuda", backend="gloo", ranks_per_device=2, machine=TWO_GPUS).settings({}) == WORKSPACE


def test_an_nccl_that_is_too_old_to_share_a_gpu_is_refused_by_its_release():
    def machine(release):
        return Machine("cuda", count=1, backend="nccl", nccl=release)

    with pytest.raises(
        UsageError, match=r"needs NCCL 2\.30 or newer, torch loads 2\.29\.7 here: preload a newer"
    ):
        resolve("cuda", ranks_per_device=2, machine=machine((2, 29, 7)))
    assert resolve("cuda", ranks_per_device=2, machine=machine((2, 30, 3))).ranks_per_device == 2
    assert resolve("cuda", machine=machine((2, 18, 1))).ranks_per_device == 1


def test_leased_devices_are_the_ones_that_ranks_get():
    devices = dataclasses.replace(resolve("cuda", ranks_per_device=2, machine=TWO_GPUS), indices=(5, 3))
    assert devices.assignment(3) == ("cuda:5", "cuda:5", "cuda:3")
    assert devices.needed(3) == 2


def test_devices_say_what_they_are_and_what_drives_them():
    machine = Machine(
        "cuda",
        count=2,
        backend="nccl",
        nccl=(2, 30, 3),
        names=("H100", "H100"),
        releases={"driver": "570.1", "CUDA": "12.8"},
    )
    assert resolve("cuda", machine=machine).names == ("H100 (driver 570.1, CUDA 12.8, NCCL 2.30.3)",) * 2
    assert resolve("cuda", machine=TWO_GPUS).names == ()
