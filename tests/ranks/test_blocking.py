"""Threads that wait for a CUDA device sleep: the flag is set on the right device before its context exists."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from pipeconform.ranks.blocking import wait_asleep


class _Driver:
    def __init__(self, *, refuses: str = "") -> None:
        self.calls: list[tuple[str, int]] = []
        self._refuses = refuses

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments[-1]))
            if name == "cuDeviceGet":
                arguments[0]._obj.value = 70 + arguments[1]
            if name.startswith("cuDevicePrimaryCtxSetFlags"):
                assert arguments[0].value == 73
            return int(name == self._refuses)

        return call


def test_the_flag_is_set_on_the_ranks_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert wait_asleep("cuda", 3)
    assert driver.calls == [("cuInit", 0), ("cuDeviceGet", 3), ("cuDevicePrimaryCtxSetFlags_v2", 4)]


def test_what_cannot_be_set_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _Driver(refuses="cuInit")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert not wait_asleep("cuda", 3)
    assert len(driver.calls) == 1
    assert not wait_asleep("xpu", 3)
