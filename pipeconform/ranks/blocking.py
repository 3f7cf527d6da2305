"""Lets a thread that waits for a CUDA device sleep: a hang is recognised by threads that do nothing.

By default such a thread spins, looks busy, and only the time limit ends the case. The flag belongs to the device's
primary context and has to be set before that is made.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["wait_asleep"]

_LIBRARY = "libcuda.so.1"
_BLOCKING = 4  # CU_CTX_SCHED_BLOCKING_SYNC


def wait_asleep(device_type: str, index: int) -> bool:
    """Set the flag for a device; False if that is impossible or unnecessary."""
    if device_type != "cuda":
        return False
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return False  # ROCm has devices of this type, and no such library
    device = ctypes.c_int()
    set_flags: Any = getattr(driver, "cuDevicePrimaryCtxSetFlags_v2", None)
    if set_flags is None:
        set_flags = driver.cuDevicePrimaryCtxSetFlags
    return bool(
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), index) == 0
        and set_flags(device, _BLOCKING) == 0
    )
