"""The single claims that can be left out of what an implementation claims."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pipeconform.adapter import Capabilities, Feature

__all__ = ["CLAIMS", "without"]

LeaveOut = Callable[[Capabilities], Capabilities]


def _feature(feature: Feature) -> LeaveOut:
    return lambda claimed: dataclasses.replace(claimed, features=claimed.features - {feature})


def _field(name: str, value: Any) -> LeaveOut:
    return lambda claimed: dataclasses.replace(claimed, **{name: value})


def _schedules(name: str, value: Any) -> LeaveOut:
    return lambda claimed: dataclasses.replace(
        claimed, schedules=tuple(dataclasses.replace(one, **{name: value}) for one in claimed.schedules)
    )


def _boundary(name: str, value: Any) -> LeaveOut:
    return lambda claimed: dataclasses.replace(
        claimed, boundary=dataclasses.replace(claimed.boundary, **{name: value})
    )


CLAIMS: Mapping[str, LeaveOut] = MappingProxyType(
    {
        **{feature.value: _feature(feature) for feature in Feature},
        "split_backward": _schedules("split_backward", value=False),
        "family": _schedules("family", value=None),
        "evaluates": _schedules("evaluates", value=False),
        "sub_groups": _field("sub_groups", value=False),
        "tracing": _field("tracing", value=None),
        "data_parallel": _field("data_parallel", value=None),
        "tensor_parallel": _field("tensor_parallel", value=None),
        "sums": _field("reductions", value=("mean",)),
        "several_tensors": _boundary("max_tensors", value=1),
        "lists": _boundary("containers", value=("tensor", "tuple")),
        "half_precision": _boundary("dtypes", value=("float64", "float32")),
        "no_grad_tensors": _boundary("no_grad_tensors", value=False),
        "non_float_tensors": _boundary("non_float_tensors", value=False),
        "empty_tensors": _boundary("empty_tensors", value=False),
        "complex_tensors": _boundary("complex_tensors", value=False),
    }
)
"""By name how to leave it out."""


def without(claimed: Capabilities, name: str) -> Capabilities:
    """The same claims but one."""
    return CLAIMS[name](claimed)
