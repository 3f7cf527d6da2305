"""What the product gets wrong on a device only, each with the property of device or backend that shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.usefixtures("device")
def test_an_engine_that_sends_in_batches_is_not_accused_where_the_backend_coalesces(tmp_path: Path) -> None:
    """torch's pipelining uses batch_isend_irecv; works of the operations inside are good for nothing."""
    result = judged(tmp_path, "torch", "COM-1,COM-3,COM-4", switches="coalesces")
    assert statuses(result) == dict.fromkeys(("COM-1", "COM-3", "COM-4"), "passed")


@pytest.mark.usefixtures("device")
def test_a_group_is_tried_with_a_tensor_of_the_device_and_the_result_says_which(tmp_path: Path) -> None:
    result = judged(tmp_path, "reference", "LIF-3,LIF-8", switches="device-only,flushes,async-wait")
    assert statuses(result) == {"LIF-3": "passed", "LIF-8": "passed"}
    assert result["environment"]["device_names"][0].startswith("testdev")
    pinned = result["environment"]["variables"]["default"]
    assert pinned["torch.use_deterministic_algorithms"] == "True"


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
    assert shown["float64"] == "warn"
    assert "coalesced: one work for a batch" in done.stdout


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

        device = torch.device("testdev", dist.get_rank())
        group = dist.new_group([0, 1])
        value = torch.ones(1, device=device)
        dist.all_reduce(value, group=group)
        if dist.get_rank() == 0:
            dist.irecv(value, 1, group=group)  # what comes before the error is pending
        _end_after_error(group)
        return "there" if is_there(group) else "ended"

    vector = on_ranks(raised, "flushes", "async-wait", ranks=2)
    assert vector.ok, vector.describe()
    assert set(vector.values) == {"ended"}
