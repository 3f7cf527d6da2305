"""Seeds for values and for the process's random numbers."""

from __future__ import annotations

import zlib

__all__ = ["seed_of", "seed_process"]


def seed_of(*parts: object) -> int:
    """A 32-bit seed derived from `parts`, the same on every machine and in every process."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def seed_process(seed: int, *, device: str = "cpu") -> None:
    """Seed the process's random numbers, on the CPU only or on every device.

    ``torch.manual_seed`` seeds every kind of device and formats a stack trace for each that is not initialised, which
    takes some milliseconds, several times per case; it is avoided on the CPU.
    """
    import torch

    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
