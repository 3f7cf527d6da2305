"""Seeds, and random numbers that begin with them."""

from __future__ import annotations

import zlib

__all__ = ["seed_of", "seed_process"]


def seed_of(*parts: object) -> int:
    """A 32-bit seed from what identifies a value; the same on every machine and in every process."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def seed_process(seed: int, *, device: str = "cpu") -> None:
    """Seed the process's random numbers on the CPU, and on `device` if it is another.

    ``torch.manual_seed`` seeds every kind of device there might be one day, and formats a stack trace for
    each that is not initialised: some milliseconds, several times per case.
    """
    import torch

    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
