"""Wrapper cases, under the name by which the modules of this package know them: they are in `case.wrapper_case`."""

from __future__ import annotations

from pipeconform.case.wrapper_case import (
    Form,
    HookKind,
    Pass,
    Regroup,
    Slow,
    Special,
    Step,
    Uneven,
    WrapperCase,
    decode_case,
)

__all__ = [
    "Form",
    "HookKind",
    "Pass",
    "Regroup",
    "Slow",
    "Special",
    "Step",
    "Uneven",
    "WrapperCase",
    "decode_case",
]
