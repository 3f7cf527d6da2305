"""Listens to modules that the harness did not make: stages that a front end made, and parts of a whole model.

The harness's own stages call their listeners themselves (`pipeconform.case.build.modules`). Here the module's hooks do.
They exist while a failing case is localised, and where an engine exports the stages that it is given: what it runs is
then made of the stages' operations, and calls no listener.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from pipeconform.case.build.modules import Intruder, Watcher

__all__ = ["listen"]


def listen(
    module: nn.Module,
    stage: int,
    *,
    watcher: Watcher | None,
    ended: Callable[[int, tuple[Any, ...], Any], None],
    intruder: Intruder | None = None,
    begins: Callable[[int], object] | None = None,
) -> None:
    """Let `watcher` surround every forward of `module`; `ended` gets stage, positional inputs and output.

    `begins` is called with the stage before, and `intruder` may delay and break forwards, as in the harness's own
    stages.
    """
    running: list[tuple[AbstractContextManager[tuple[Any, ...]], tuple[Any, ...], int | None]] = []

    def before(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        microbatch = None
        if intruder is not None:
            microbatch, inputs = intruder.before(stage, inputs)
        if begins is not None:
            begins(stage)
        surroundings = nullcontext(inputs) if watcher is None else watcher.forward(module, stage, inputs)
        seen = surroundings.__enter__()
        running.append((surroundings, inputs, microbatch))
        return seen

    def after(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
        surroundings, inputs, microbatch = running.pop()
        ended(stage, inputs, output)
        surroundings.__exit__(None, None, None)
        return output if intruder is None else intruder.after(stage, microbatch, output)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)
