"""The test device in the processes that tests start; the tests' own process never loads it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys

import pytest

from tests.device import building


@pytest.fixture(scope="session")
def compiled():
    """Compile the device, once for all runs of the tests."""
    import torch  # noqa: F401 - before the device is on the path, where torch would find and load it

    try:
        building.build()
    except building.MissingCompilerError as error:
        pytest.skip(f"the test device is compiled, and {error}")


@pytest.fixture(scope="module")
def device(compiled):
    """Let processes that are started from now on find the device, as if pip had installed it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in building.environment().items():
            patch.setenv(name, value)
        patch.setattr(sys, "path", [*sys.path, str(building.VENDOR)])
        yield


@pytest.fixture(scope="module")
def on_ranks(device):
    """Call a function on ranks that have the device, with some of its properties; all ranks come from one server."""
    from pipeconform import run_on_ranks

    def call(function, *switches, ranks=1, **options):
        return run_on_ranks(
            functools.partial(_with, switches, function),
            ranks=ranks,
            device="testdev",
            backend="testccl",
            environment={"PYTHONPATH": os.environ["PYTHONPATH"], "TESTDEV_SWITCHES": ""},
            **options,
        )

    return call


def _with(switches, function):
    import torch

    with contextlib.suppress(RuntimeError):  # of a communicator that an earlier call aborted
        torch.testdev.synchronize()
    with torch.testdev.switched(*switches):
        return function()
