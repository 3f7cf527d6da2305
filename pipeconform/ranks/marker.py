"""Runs a pytest test on ranks: what the marker ``pipeconform_ranks`` does, under any name."""

from __future__ import annotations

import functools
import inspect

import pytest

from pipeconform.errors import PipeconformError, UsageError
from pipeconform.ranks.on_ranks import run_on_ranks
from pipeconform.ranks.verdict import Raised, VerdictVector

__all__ = ["call_on_ranks"]

_OPTIONS = ("time_limit", "idle_limit", "record", "device", "backend", "ranks_per_device", "environment")


def call_on_ranks(item: pytest.Function, marker: pytest.Mark) -> None:
    """Call ``item``, which has the marker, with its fixtures' values on every rank; fail with all ranks' verdicts.

    A test that skips on every rank is skipped.
    """
    try:
        vector = _vector(item, marker)
    except PipeconformError as error:
        text = str(error)
    else:
        if vector.ok:
            return
        _skip_if_all_did(vector)
        text = vector.explain()
    pytest.fail(text, pytrace=False)


def _vector(item: pytest.Function, marker: pytest.Mark) -> VerdictVector:
    if hasattr(item.obj, "hypothesis"):
        raise UsageError(
            "a Hypothesis test would draw different examples on every rank: draw here, and call "
            "pipeconform.run_on_ranks in the test"
        )
    unknown = sorted(set(marker.kwargs) - set(_OPTIONS))
    if len(marker.args) != 1 or not isinstance(marker.args[0], int) or marker.args[0] < 1 or unknown:
        raise UsageError(
            f"the marker reads {marker.name}{marker.args}{marker.kwargs or ''}; expected the number of "
            f"ranks, such as {marker.name}(4), and any of the options {', '.join(_OPTIONS)}"
        )
    names = [name for name in inspect.signature(item.obj).parameters if name in item.funcargs]
    function = functools.partial(item.obj, **{name: item.funcargs[name] for name in names})
    return run_on_ranks(function, ranks=marker.args[0], **marker.kwargs)


def _skip_if_all_did(vector: VerdictVector) -> None:
    skipped = [v.message for v in vector if isinstance(v, Raised) and v.type.rpartition(".")[2] == "Skipped"]
    if len(skipped) == len(vector):
        pytest.skip(skipped[0])
