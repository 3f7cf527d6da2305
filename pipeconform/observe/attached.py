"""Listens to modules that the harness did not make: stages that a front end made, and parts of a whole model.

The harness's own stages call their listeners themselves (`pipeconform.case.build.modules`). Here the module's hooks do;
they exist only while a failing case is localised.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from pipeconform.case.build.modules import Watcher

__all__ = ["listen"]


def listen(
    module: nn.Module,
    stage: int,
    *,
    watcher: Watcher,
    ended: Callable[[int, tuple[Any, ...], Any], None],
) -> None:
    """Let `watcher` surround every forward of `module`; `ended` gets stage, positional inputs and output."""
    running: list[tuple[AbstractContextManager[tuple[Any, ...]], tuple[Any, ...]]] = []

    def before(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        surroundings = watcher.forward(module, stage, inputs)
        seen = surroundings.__enter__()
        running.append((surroundings, inputs))
        return seen

    def after(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        surroundings, inputs = running.pop()
        ended(stage, inputs, output)
        surroundings.__exit__(None, None, None)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)
