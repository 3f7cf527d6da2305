"""What a wrapper tells about itself, and which devices it refuses."""

from __future__ import annotations

import time

import pytest
import torch
from pipeconform.reference_impl.replica_log import Log
from pipeconform.reference_impl.replica_state import check_devices


def test_one_pass_in_so_many_is_measured():
    log = Log()
    log.set_rate(2)
    measured = []
    for _ in range(3):
        with log.reducing():
            time.sleep(0.001)
        measured.append(log.seconds)

    assert log.passes == 3
    assert measured[0] == 0.0
    assert measured[1] == measured[2] >= 0.001


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_below_one_is_refused(rate):
    with pytest.raises(ValueError, match=f"rate is a number of passes, at least 1, not {rate}"):
        Log().set_rate(rate)


@pytest.mark.parametrize(
    ("devices", "wanted", "words"),
    [
        (("cpu", "meta"), None, "one kind of device, but has a on cpu, b on meta"),
        (("cpu", "cpu"), torch.device("cuda", 1), "the device cuda:1, but has b on cpu"),
    ],
)
def test_devices_that_do_not_fit_are_refused_by_name(devices, wanted, words):
    tensors = {name: torch.zeros(1, device=device) for name, device in zip("ab", devices, strict=True)}

    with pytest.raises(ValueError, match=words):
        check_devices(tensors, wanted)


def test_devices_that_fit_are_not_refused():
    tensors = {"a": torch.zeros(1)}

    check_devices(tensors, None)
    check_devices(tensors, torch.device("cpu"))
