# ruff: noqa
# mypy: ignore-errors
"""What every program has: random numbers by seed, parameters, and comparisons with the full model."""

import os
import re
import signal
import sys
import tempfile
import time
import warnings
import zlib
from datetime import timedelta
from pathlib import Path
from traceback import format_exc

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional


def seeded(*role):
    """Random numbers for one purpose, the same in every process."""
    return torch.manual_seed(zlib.crc32("/".join(map(str, (SEED, *role))).encode()))


def build(s):
    seeded("stage", s)
    stage = STAGES[s]()
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            parameter.normal_(std=(parameter.shape[-1] if parameter.ndim > 1 else 4) ** -0.5)
            if name.endswith("weight") and parameter.ndim == 1:
                parameter.add_(1.0)
    return stage.to(DTYPE)


def parameters(stages):
    return {
        f"{name} of stage {s}": parameter.detach().clone()
        for s, stage in stages.items()
        for name, parameter in stage.named_parameters()
    }


def gradients(stages):
    return {
        f"{name} of stage {s}": None if parameter.grad is None else parameter.grad.clone()
        for s, stage in stages.items()
        for name, parameter in stage.named_parameters()
    }


def buffers(stages):
    return {
        f"{name} of stage {s}": buffer.clone()
        for s, stage in stages.items()
        for name, buffer in stage.named_buffers()
    }


def wrong(expected, found):
    """What is not the full model's by more than torch.testing allows for rounding."""
    for step, (right, mine) in enumerate(zip(expected, found)):
        for name, value in mine.items():
            if value is None or right[name] is None:
                continue
            try:
                torch.testing.assert_close(value, right[name], equal_nan=True)
            except AssertionError as error:
                yield f"WHAT of {name} after step {step} is wrong: {error}"


def missing(expected, found):
    """What the full model has and the pipeline has not."""
    for step, (right, mine) in enumerate(zip(expected, found)):
        for name, value in mine.items():
            if value is None and right[name] is not None:
                yield f"WHAT of {name} after step {step} is missing"


def longer(expected, found):
    """Merged outputs with another number of samples."""
    for step, (right, mine) in enumerate(zip(expected, found)):
        for name, value in mine.items():
            if len(value) != len(right[name]):
                yield f"after step {step}, {name} has {len(value)} samples, expected {len(right[name])}"


def changed(before, after):
    """What an evaluation changed."""
    for name, value in after.items():
        if (value is None) != (before[name] is None) or not (
            value is None or torch.equal(value, before[name])
        ):
            yield f"WHAT of {name} was {before[name]} before the evaluation and is {value} after it"
