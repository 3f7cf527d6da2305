"""What the product gets wrong on a device only, each with the property of device or backend that shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tenths

pytestmark = pytest.mark.xdist_group("device")

ON_DEVICE = ("--device", "testdev", "--backend", "testccl")


def pipeconform(*arguments: str, switches: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeconform", *arguments],
        env={**os.environ, "TESTDEV_SWITCHES": switches},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def judged(folder: Path, impl: str, requirements: str, *, switches: str) -> dict[str, Any]:
    chosen = ("--requirements", requirements, "--schedules", "GPipe", "--profile", "smoke", "--ranks", "2")
    done = pipeconform("run", "--impl", impl, *ON_DEVICE, *chosen, "--out", str(folder), switches=switches)
    assert (folder / "result.json").exists(), done.stderr
    found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
    return found


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {cell["requirement"]: cell["status"] for cell in result["cells"] if cell["variant"] == "default"}


@tenths.long
@pytest.mark.usefixtures("device")
def test_an_engine_that_sends_in_batches_is_not_accused_where_the_backend_coalesces(tmp_path: Path) -> None:
    """torch's pipelining uses batch_isend_irecv; works of the operations inside are good for nothing."""
    result = judged(tmp_path, "torch", "COM-1,COM-3,COM-4", switches="coalesces")
    assert statuses(result) == dict.fromkeys(("COM-1", "COM-3", "COM-4"), "passed")


@tenths.long
@pytest.mark.usefixtures("device")
def test_a_group_is_tried_with_a_tensor_of_the_device_and_the_result_says_which(tmp_path: Path) -> None:
    result = judged(tmp_path, "reference", "LIF-3,LIF-8", switches="device-only,flushes,async-wait")
    assert statuses(result) == {"LIF-3": "passed", "LIF-8": "passed"}
    assert result["environment"]["device_names"][0].startswith("testdev")
    pinned = result["environment"]["variables"]["default"]
    assert pinned["torch.use_deterministic_algorithms"] == "True"


@tenths.long
@pytest.mark.usefixtures("device")
def test_a_backend_that_does_not_serve_the_device_is_the_machines_fault(tmp_path: Path) -> None:
    done = pipeconform(
        *(
            "run",
            "--impl",
            "reference",
            "--device",
            "testdev",
            "--backend",
            "gloo",
            "--requirements",
            "FWD-1",
        ),
        *("--schedules", "GPipe", "--profile", "smoke", "--out", str(tmp_path)),
    )
    assert done.returncode == 3
    assert "backend 'gloo' and device testdev:" in done.stdout
    assert "do not work together" in done.stdout
    assert "Traceback" not in done.stdout


@tenths.long
@pytest.mark.usefixtures("device")
def test_doctor_says_what_device_and_backend_can_do() -> None:
    done = pipeconform("doctor", *ON_DEVICE, switches="nccl,no-float64")
    shown = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if line[:4].strip()}
    assert {name: shown[name] for name in ("transfer", "collectives", "batches", "determinism", "abort")} == {
        "transfer": "ok",
        "collectives": "ok",
        "batches": "ok",
        "determinism": "ok",
        "abort": "ok",
    }
    assert (shown["float64"], shown["modules"]) == ("warn", "warn")
    assert "a shared one becomes two, and hooks are lost" in done.stdout
    assert "place stages with plan.build_owned()" in done.stdout
    assert "coalesced: one work for a batch" in done.stdout


@tenths.long
def test_a_run_takes_backends_for_several_devices(device: None, tmp_path: Path) -> None:
    backend = ("--device", "testdev", "--backend", "cpu:gloo,testdev:testccl")
    chosen = ("--requirements", "FWD-1", "--schedules", "GPipe", "--profile", "smoke", "--ranks", "2")
    done = pipeconform(
        "run", "--impl", "reference", *backend, *chosen, "--out", str(tmp_path), switches="nccl"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def told_of_groups() -> tuple[bool, bool]:
    from pipeconform.execute import groups

    return groups._with_gloo(), groups.ends_after_errors()


def test_gloo_is_found_beside_the_backend_of_a_device(device: None) -> None:
    """It connects when a group is made, and the other backend flushes when it ends: both need care."""
    from pipeconform import run_on_ranks

    environment = {"PYTHONPATH": os.environ["PYTHONPATH"], "TESTDEV_SWITCHES": ""}
    asked: dict[str, Any] = {"ranks": 1, "environment": environment}
    mixed = run_on_ranks(told_of_groups, device="testdev", backend="cpu:gloo,testdev:testccl", **asked)
    alone = run_on_ranks(told_of_groups, device="testdev", backend="testccl", **asked)
    assert (mixed.values[0], alone.values[0]) == ((True, False), (False, False))
    assert run_on_ranks(told_of_groups, ranks=1, backend="cpu:gloo").values[0] == (True, True)


def test_calls_on_ranks_use_devices_that_no_other_process_has_leased(on_ranks: Any) -> None:
    from pipeconform.ranks.devices import resolve
    from pipeconform.ranks.leased import leases_of

    def used() -> int:
        import torch

        return int(torch.testdev.current_device())

    leases = leases_of(resolve("testdev", backend="testccl"))
    assert leases is not None
    with leases.take(2, patience=30.0) as held:
        assert set(on_ranks(used, ranks=2).values).isdisjoint(held.indices)


@tenths.long
def test_a_group_has_one_communicator_if_it_knows_its_device(device: None) -> None:
    """Without it each pair of ranks has one of its own, whose first operation waits for the other rank."""
    from pipeconform import run_on_ranks

    def made() -> tuple[bool, float]:
        import time

        import torch
        import torch.distributed as dist

        own = torch.device("testdev", torch.testdev.current_device())
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1, device=own), group=group)
        torch.testdev.synchronize()
        if dist.get_rank() == 1:
            time.sleep(1.5)
        begun = time.monotonic()
        if dist.get_rank() == 0:
            dist.isend(torch.ones(1, device=own), 1, group=group)
        else:
            dist.recv(torch.ones(1, device=own), 0, group=group)
        issued = time.monotonic() - begun
        torch.testdev.synchronize()
        known = dist.group.WORLD.bound_device_id == own  # type: ignore[union-attr]
        dist.destroy_process_group(group)
        return known, issued

    given = {"PYTHONPATH": os.environ["PYTHONPATH"], "TESTDEV_SWITCHES": "nccl"}
    asked: dict[str, Any] = {"ranks": 2, "device": "testdev", "backend": "testccl"}
    bound = run_on_ranks(made, **asked, environment={**given, "PIPECONFORM_DEVICE_ID": "1"})
    lazy = run_on_ranks(made, **asked, environment=given)
    (known, at_once), (unknown, late) = bound.values[0], lazy.values[0]
    assert (known, unknown) == (True, False)
    assert at_once < 1.0 < late


def test_copies_of_a_forward_are_read_when_they_are_made(on_ranks) -> None:  # type: ignore[no-untyped-def]
    """A recorder that reads at once waits for the stream, and hides that its caller does not."""

    def recorded() -> tuple[list[str], list[float]]:
        import torch

        from pipeconform.observe.recorder import ForwardRecorder

        device, read, to = torch.device("testdev:0"), [], torch.Tensor.to
        recorder = ForwardRecorder(device=device)
        value = torch.ones(3, device=device) + 1
        torch.Tensor.to = lambda tensor, *given, **named: (read.append("read"), to(tensor, *given, **named))[
            1
        ]
        try:
            recorder.forward(0, (value,), value * 2, [], training=True)
        finally:
            torch.Tensor.to = to
        (forward,) = recorder.take()
        return read, forward.output.leaves()[0].tensor().tolist()

    vector = on_ranks(recorded, "late")
    assert vector.ok, vector.describe()
    assert vector.values[0] == ([], [4.0, 4.0, 4.0])


def test_random_numbers_of_the_device_are_seen(on_ranks) -> None:  # type: ignore[no-untyped-def]
    def drawn() -> tuple[bool, bool]:
        import torch

        from pipeconform.execute.randomness import moved, random_state

        device = torch.device("testdev:0")
        before = random_state(device)
        still = moved(before, device)
        torch.rand(1, device=device)
        return still, moved(before, device)

    vector = on_ranks(drawn)
    assert vector.ok, vector.describe()
    assert vector.values[0] == (False, True)


def test_a_group_that_flushes_is_aborted_after_an_error(on_ranks) -> None:  # type: ignore[no-untyped-def]
    """The rank that raised must not be reported as stuck in the end of its group."""

    def raised() -> str:
        import torch
        import torch.distributed as dist

        from pipeconform.execute.groups import _end_after_error, is_there

        device = torch.device("testdev", torch.accelerator.current_device_index())
        group = dist.new_group([0, 1])
        value = torch.ones(1, device=device)
        dist.all_reduce(value, group=group)
        torch.accelerator.synchronize()  # else one rank may end the group before the other is connected
        if dist.get_rank() == 0:
            dist.irecv(value, 1, group=group)  # what comes before the error is pending
        _end_after_error(group)
        return "there" if is_there(group) else "ended"

    vector = on_ranks(raised, "flushes", "async-wait", ranks=2)
    assert vector.ok, vector.describe()
    assert set(vector.values) == {"ended"}


@tenths.long
@pytest.mark.usefixtures("device")
def test_what_one_rank_raises_is_reported_although_its_engine_would_wait_when_it_is_closed(
    tmp_path: Path,
) -> None:
    engine = Path(__file__).with_name("closes.py")
    result = judged(tmp_path, f"{engine}:Closes", "FWD-1", switches="nccl")
    assert statuses(result) == {"FWD-1": "error"}
    (violation,) = result["cells"][0]["violations"]
    assert "rank 1 raised AttributeError: Identity has no attribute `absent`" in violation["message"]
