"""Engines whose ranks have one mistake in the harness; ``PLANTED`` names it.

An adapter is imported by the ranks only, so the mistake reaches no other process.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from pipeconform.adapters.torch_pipelining import TorchPipelining as Planted

__all__ = ["Planted"]


def _batches_are_not_followed() -> None:
    from pipeconform.ranks.recording.recorder import Recorder

    def coalesced(self: Any, group: Any, work: Any) -> None:
        self._coalescing.pop(group.group_name, None)

    Recorder.coalesced = coalesced


def _a_sum_on_the_cpu() -> None:
    from pipeconform.execute import leaks

    right = leaks._works
    leaks._works = lambda group, device: right(group, torch.device("cpu"))


def _what_was_received_is_copied_on_another_stream() -> None:
    from pipeconform.observe.traffic.buffers import Received

    right = Received.complete

    def complete(self: Any) -> Any:
        side = torch.Stream(device=self.memory.device) if not self.memory.is_cpu else None
        if side is None:
            return right(self)
        with side:  # which has not waited for the transfer
            return right(self)

    Received.complete = complete


_MISTAKES = {
    "batches are not followed": _batches_are_not_followed,
    "a sum on the CPU": _a_sum_on_the_cpu,
    "what was received is copied on another stream": _what_was_received_is_copied_on_another_stream,
}

if os.environ.get("PLANTED"):
    _MISTAKES[os.environ["PLANTED"]]()
