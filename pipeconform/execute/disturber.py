"""Perturbs a rank as its case says, by delays, a stop, an error or its death; see `pipeconform.case.perturbations`.

Computations are perturbed from inside the stage modules, the one place that every engine passes through.
Sends and receives are perturbed where c10d operators pass a dispatch mode, whatever API the engine uses.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pipeconform.case.case import Eval, Step, Train
from pipeconform.case.perturbations import AnyPerturbation, Perturbation, SlowLink

__all__ = ["DeliberateError", "Disturber"]

_SIDES = {
    "send": ("send",),
    "receive": ("recv_", "recv_any_source_"),
    "reduce": ("allreduce_", "allreduce_coalesced_", "reduce_scatter_", "_reduce_scatter_base_"),
}


class DeliberateError(Exception):
    """Raised by a case's ``error``: it stands for any exception of the model's own code."""


class Disturber:
    """Perturbs one rank, in position `rank` of a replica's pipeline; None for a bystander."""

    def __init__(
        self, perturbations: Sequence[AnyPerturbation], *, rank: int | None, replica: int = 0
    ) -> None:
        own = [one for one in perturbations if one.replica in (None, replica)]
        self._points = [one for one in own if isinstance(one, Perturbation)]
        self._links = [one for one in own if isinstance(one, SlowLink) and one.rank == rank]
        self._forwards: Counter[int] = Counter()
        self._run = -1

    def __deepcopy__(self, memo: object) -> Disturber:
        """Keep perturbing when an engine copies its stages."""
        return self

    def during(self, step: Step) -> AbstractContextManager[object]:
        """Perturb one step of the program, which runs inside."""
        if not isinstance(step, Train | Eval):
            return nullcontext()
        self._run += 1
        self._forwards.clear()
        return _SlowLinks(self._links) if self._links else nullcontext()

    def before(self, stage: int, inputs: tuple[Any, ...]) -> tuple[int | None, tuple[Any, ...]]:
        """A forward begins: return its microbatch (None in a recomputation), and the inputs to work on."""
        if torch._C._current_graph_task_id() != -1:
            return None, inputs
        microbatch = self._forwards[stage]
        self._forwards[stage] += 1
        for one in self._due(stage, microbatch, part="forward", when="before"):
            _perturb(one, microbatch)
        late = self._due(stage, microbatch, part="backward", when="after")
        return microbatch, _watched(inputs, functools.partial(_once, late, microbatch)) if late else inputs

    def after(self, stage: int, microbatch: int | None, output: Any) -> Any:
        """The forward has ended with `output`."""
        if microbatch is None:
            return output
        early = self._due(stage, microbatch, part="backward", when="before")
        last = next((value.grad_fn for value in _tensors(output) if value.grad_fn is not None), None)
        if early and last is not None:
            last.register_prehook(functools.partial(_once, early, microbatch))
        for one in self._due(stage, microbatch, part="forward", when="after"):
            _perturb(one, microbatch)
        return output

    def _due(self, stage: int, microbatch: int, *, part: str, when: str) -> list[Perturbation]:
        return [
            one
            for one in self._points
            if (one.stage, one.part, one.when) == (stage, part, when)
            and one.microbatch in (None, microbatch)
            and one.run in (None, self._run)
        ]


class _SlowLinks(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's subclass hook is untyped
    """Sleeps before or after the c10d operators that send, receive or reduce."""

    def __init__(self, links: Sequence[SlowLink]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._links = links

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        name = func._opname
        self._sleep(name, "before")
        result = func(*args, **(kwargs or {}))
        self._sleep(name, "after")
        return result

    def _sleep(self, name: str, when: str) -> None:
        for link in self._links:
            if link.when == when and name in _SIDES[link.side]:
                time.sleep(link.milliseconds / 1000)


def _once(due: list[Perturbation], microbatch: int, gradients: object) -> None:
    """Perturb when a gradient passes; only the first one of a computation counts."""
    while due:
        _perturb(due.pop(0), microbatch)


def _perturb(one: Perturbation, microbatch: int) -> None:
    match one.what:
        case "delay":
            time.sleep(one.milliseconds / 1000)
        case "stop":
            # the child does both, so that it cannot continue this process before it has stopped it
            script = f"kill -STOP $PPID; sleep {one.milliseconds / 1000}; kill -CONT $PPID"
            subprocess.run(["/bin/sh", "-c", script], check=True)  # noqa: S603 - only a number varies
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "error":
            raise DeliberateError(
                f"deliberate error in stage {one.stage}, microbatch {microbatch}, {one.part}"
            )


def _watched(inputs: tuple[Any, ...], passed: Any) -> tuple[Any, ...]:
    """Views of the inputs that need a gradient; a hook on the view's node sees the gradient pass."""
    return tuple(_view(value, passed) for value in inputs)


def _view(value: Any, passed: Any) -> Any:
    if not isinstance(value, Tensor) or not value.requires_grad or not torch.is_grad_enabled():
        return value
    view = value.view_as(value)
    assert view.grad_fn is not None
    view.grad_fn.register_prehook(passed)
    return view


def _tensors(output: Any) -> list[Tensor]:
    values = output.values() if isinstance(output, dict) else output
    values = values if isinstance(output, dict | tuple | list) else (output,)
    return [value for value in values if isinstance(value, Tensor)]
