"""The command for a machine with a GPU, on the test device: every part but for what only NVIDIA has."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("device"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ON_DEVICE = ("--device", "testdev", "--backend", "testccl")
LITTLE = ("--requirements", "FWD-1,COM-1,ERR-3,LIF-3", "--schedules", "GPipe")


def command(out, *more):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *ON_DEVICE, *LITTLE, "--out", str(out), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_part_is_run_and_none_twice(device, monkeypatch, tmp_path):
    monkeypatch.setenv("TESTDEV_SWITCHES", "nccl")
    first = command(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    records = [json.loads(path.read_bytes()) for path in tmp_path.glob("*/part.json")]

    assert {one["state"] for one in records} == {"done"}
    assert len(records) == 26
    assert (
        "a circle: rank 0 waits for rank 1 waits for rank 0"
        in (tmp_path / "hang/explanation.txt").read_text()
    )
    assert pickle.loads((tmp_path / "hang/flight-1.pickle").read_bytes())["version"]
    (cell,) = json.loads((tmp_path / "hanging-engine/result.json").read_bytes())["cells"]
    assert cell["status"] == "hung"
    page = (tmp_path / "report.html").read_text()
    assert 'href="two-workers/report.html"' in page

    again = command(tmp_path)
    assert again.returncode == 0
    assert "done (" not in again.stdout
