"""Why torch's verdicts of ERR differ on the device: plain torch shows the same, without pipeconform."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.mistaken_messages import BACKENDS, MISTAKES

pytestmark = [pytest.mark.xdist_group("device"), pytest.mark.slow]


def test_what_becomes_of_a_message_that_does_not_fit_depends_on_the_backend(device, monkeypatch):
    monkeypatch.setenv("TESTDEV_SWITCHES", "nccl")
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.mistaken_messages"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    page = (Path(__file__).parents[2] / "docs" / "accelerators.md").read_text()
    assert done.stdout.count("\n") == len(MISTAKES) * len(BACKENDS)
    assert done.stdout in page
