"""A step by hand: the operations of one stage, microbatch by microbatch (torch says chunk by chunk).

While `runtime` carries out a rank's list of actions, here the user calls what such a list holds. For each
microbatch (calls in brackets only if the neighbouring stage lives on another rank)::

    [receive_forward]  forward  [send_forward]
    [receive_backward]  backward  [send_backward]                          full backward, or
    [receive_backward]  backward(full=False)  [send_backward]  …  backward_weight

A neighbour on the same rank needs no message. Receives wait; sends return at once and
are waited for by `finish`, which also averages gradients over replicas. A call that is not due raises
`OrderError`, which names the stage, the microbatch and what is due, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from .errors import OrderError
from .runtime import Key, Step


class ChunkOperations:
    """One stage of a step that is driven by hand."""

    def __init__(self, step: Step, *, stage: int, num_microbatches: int) -> None:
        self._step, self._s, self._m = step, stage, num_microbatches
        self._stage, self._replicas = step.stages[stage], step.replicas.get(stage)
        self._surroundings = ExitStack()
        if self._replicas is not None:
            self._surroundings.enter_context(self._replicas.step())

    def receive_forward(self, microbatch: int) -> None:
        """Wait for the input from the previous stage's rank."""
        self._require_known(microbatch, "receive_forward")
        self._stage.require("forward", microbatch, asked="receive_forward")
        self._step.receive_input(self._s, microbatch)

    def forward(self, microbatch: int) -> None:
        """Run the stage; the last one also computes the loss."""
        self._require_known(microbatch, "forward")
        self._stage.require("forward", microbatch, asked="forward")
        self._require_here(self._step.inputs, microbatch, asked="forward", due="its input")
        self._step.forward(self._s, microbatch)

    def send_forward(self, microbatch: int) -> None:
        """Send the output to the next stage's rank."""
        self._require_known(microbatch, "send_forward")
        self._require_here(self._step.outputs, microbatch, asked="send_forward", due="its output")
        self._step.send_output(self._s, microbatch)

    def receive_backward(self, microbatch: int) -> None:
        """Wait for the output's gradient from the next stage's rank."""
        self._require_known(microbatch, "receive_backward")
        self._stage.require("backward", microbatch, asked="receive_backward")
        self._step.receive_gradient(self._s, microbatch)

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        """Run the backward of the stage; ``full=False`` leaves the parameters to `backward_weight`."""
        asked = "backward" if full else "input part"
        self._require_known(microbatch, asked)
        self._stage.require("backward", microbatch, asked=asked)
        self._require_here(
            self._step.output_gradients, microbatch, asked=asked, due="the gradient of its output"
        )
        self._step.backward(self._s, microbatch, whole=full)

    def backward_weight(self, microbatch: int) -> None:
        """Accumulate the parameters' gradients, once, after ``backward(full=False)``."""
        self._require_known(microbatch, "weight part")
        self._step.backward_weight(self._s, microbatch)

    def send_backward(self, microbatch: int) -> None:
        """Send the input's gradient to the previous stage's rank."""
        self._require_known(microbatch, "send_backward")
        self._require_here(
            self._step.input_gradients, microbatch, asked="send_backward", due="the gradient of its input"
        )
        self._step.send_gradient(self._s, microbatch)

    def finish(self) -> None:
        """End the step: wait for what was sent, average gradients over replicas, forget every microbatch.

        Raises:
            OrderError: Something is still due for a microbatch; nothing was changed. (With replicas the step ends
                all the same, because the others wait for this one's message.)
            PeerError: Something of a replica's step is unfinished; no gradient was averaged.
        """
        left = self._stage.left(self._m)
        if left and self._replicas is None:
            which = ", ".join(f"microbatch {k}" for k in left)
            raise OrderError(f"stage {self._s} was asked for the end of the step; unfinished: {which}")
        self._step.link.wait()
        with self._surroundings:
            unfinished = bool(self._stage.unfinished)
            self._stage.clear()
            if self._replicas is not None:
                self._replicas.reduce(failed=unfinished)

    def _require_known(self, microbatch: int, asked: str) -> None:
        if not 0 <= microbatch < self._m:
            raise OrderError(
                f"stage {self._s} was asked for the {asked} of microbatch {microbatch}; "
                f"this step has microbatches 0 to {self._m - 1}"
            )

    def _require_here(self, values: Mapping[Key, Any], microbatch: int, *, asked: str, due: str) -> None:
        if (self._s, microbatch) not in values:
            raise OrderError(
                f"stage {self._s} was asked for the {asked} of microbatch {microbatch}, but {due} is not here"
            )
