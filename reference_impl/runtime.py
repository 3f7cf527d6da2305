"""One step of the pipeline on one rank: carry out the rank's list of actions.

A table (``pipeconform.schedule``) says what every rank does, in which order, sends and receives included.
The runtime knows no schedule; it follows the table. Stage s hands its output to stage s+1 and gets
the output's gradient back; on the same rank this is an assignment, otherwise a message.

When something fails, the rank remembers the error, computes nothing more, and goes on through its list:
where a value is due it sends a notice of failure, and it drops what it receives. A rank that receives a
notice does the same. Every message of the step is thus sent and received as planned, no rank waits in
vain, and the group is usable afterwards; at the end of the step every rank that knows of a failure raises.

A stage with replicas averages its gradients with them when its last backward, or weight part, has run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pipeconform.schedule import Action, Kind

from .containers import leaves_of, map_leaves
from .errors import PeerError, PipelineError, StageError
from .link import Failure, Link
from .replicas import Replicas
from .stage import Stage, hand_over

Key = tuple[int, int]
"""Stage and microbatch."""
Due = tuple[int, Key | None]
"""A message's source, and the boundary whose gradient it is; None for an input, which comes in any case."""

_WORDS = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input part", Kind.W: "weight part"}


@dataclass(frozen=True, kw_only=True)
class Work:
    """The input of one step; the same list of microbatches on every rank."""

    inputs: Sequence[tuple[Any, ...]]
    """Per microbatch the first stage's positional arguments."""
    kwargs: Mapping[int, Sequence[Mapping[str, Any]]]
    """Per stage and microbatch."""
    targets: Sequence[Any]
    """Per microbatch."""
    loss: Callable[[Any, Any], Tensor] | None
    """``loss(output, target)``, 0-d; None evaluates: forward only, no gradient anywhere."""
    divisor: int = 1
    """Every microbatch's loss is divided by it before the backward."""
    scale: float = 1.0
    """Every microbatch's loss is multiplied by it before the backward."""
    measured: Callable[[Any, Any], Tensor] | None = None
    """The loss of an evaluation, like `loss`; None if none is wanted."""


@dataclass(frozen=True, kw_only=True)
class Yield:
    """The results of one step on this rank; empty lists if another rank has them."""

    outputs: Mapping[int, Any] = field(default_factory=dict)
    """Per microbatch, without graph."""
    losses: Mapping[int, Tensor] = field(default_factory=dict)
    """Per microbatch, without graph, not divided."""
    input_gradients: Mapping[int, Sequence[Tensor | None]] = field(default_factory=dict)
    """Per microbatch: one per tensor of the first stage's positional arguments."""


class Step:
    """One run through a rank's list of actions; use it once.

    `placement` gives the position of every stage's rank in the pipeline, `rank` this one's. `name` names
    this rank in errors. Its computations and messages can also be called one by one, see `operations`.
    """

    def __init__(
        self,
        work: Work,
        *,
        stages: Mapping[int, Stage],
        placement: Sequence[int],
        rank: int,
        link: Link,
        name: str,
        replicas: Mapping[int, Replicas] = MappingProxyType({}),
    ) -> None:
        self.replicas = replicas
        self.work, self.stages, self.link = work, stages, link
        self.placement, self.position, self._name = placement, rank, name
        self._last = len(placement) - 1
        self.inputs: dict[Key, Any] = {(0, k): args for k, args in enumerate(work.inputs)}
        self.outputs: dict[Key, Any] = {}
        self.output_gradients: dict[Key, Sequence[Tensor | None]] = {}
        self.input_gradients: dict[Key, Sequence[Tensor | None]] = {}
        self._differentiable: dict[Key, bool] = {}  # whether a gradient comes back for this stage's *input*
        self._results: dict[int, Any] = {}
        self._losses: dict[int, Tensor] = {}
        self._failure: PipelineError | None = None

    def run(self, actions: Sequence[Action]) -> Yield:
        """Carry out the actions, in order.

        Raises:
            StageError: A stage or the loss failed here; its ``__cause__`` is the original error.
            PeerError: Another rank failed and told this one.
        """
        parts, due = _one_by_one(tuple(actions), tuple(self.placement))
        complete = self.complete_after(parts)
        self._expect(due.get(-1, ()))
        for position, part in enumerate(parts):
            self._carry_out(part)
            self._expect(due.get(position, ()))
            for s in complete.get(position, ()):
                self._average(s)
        self.link.wait()
        if self._failure is None:
            self._check_finished()
        if self._failure is not None:
            raise self._failure
        first = {k: found for (s, k), found in self.input_gradients.items() if s == 0}
        return Yield(outputs=self._results, losses=self._losses, input_gradients=first)

    def _carry_out(self, action: Action) -> None:
        s, k = action.stage, action.microbatch
        if k is None:
            return  # sharding actions: when to gather and to reduce is decided in `replicas`
        if action.kind in _WORDS:
            self._compute(action, s, k)
        elif action.kind is Kind.SEND_F:
            self.send_output(s, k)
        elif action.kind is Kind.RECV_F:
            self.receive_input(s, k)
        elif action.kind is Kind.SEND_B:
            self.send_gradient(s, k)
        elif action.kind is Kind.RECV_B:
            self.receive_gradient(s, k)
        else:
            raise ValueError(f"{action} is not an action this runtime knows")

    # ------------------------------------------------------------------------------ computations

    def _compute(self, action: Action, s: int, k: int) -> None:
        if self._failure is not None:
            return
        try:
            if action.kind is Kind.F:
                self.forward(s, k)
            elif action.kind is Kind.W:
                self.backward_weight(s, k)
            else:
                self.backward(s, k, whole=action.kind is Kind.B)
        except Exception as error:
            self._fail(s, k, _WORDS[action.kind], error)

    def forward(self, s: int, k: int) -> None:
        """Run stage s on microbatch k, whose input is here; the last stage also computes the loss."""
        work, training = self.work, self.work.loss is not None
        kwargs = work.kwargs.get(s)
        output = self.stages[s].forward(
            k,
            self.inputs.pop((s, k)),
            kwargs[k] if kwargs else {},
            differentiate=training,
            boundary=s != self._last,
        )
        if s != self._last:
            handed = hand_over(output)
            if self._is_here(s + 1):
                self.inputs[s + 1, k] = handed
            else:
                self.outputs[s, k] = handed
            return
        self._results[k] = _detached(output)
        if work.loss is not None:
            loss = work.loss(output, work.targets[k])
            if not isinstance(loss, Tensor) or loss.ndim:
                raise TypeError(f"the loss function returned {loss!r:.80}; expected a 0-d tensor")
            self._losses[k] = loss.detach()
            shared = loss / work.divisor if work.divisor != 1 else loss
            self.stages[s].end_in(k, shared * work.scale if work.scale != 1 else shared)
            self.output_gradients[s, k] = [torch.ones_like(loss)]
        elif work.measured is not None:
            with torch.no_grad():
                self._losses[k] = work.measured(output, work.targets[k])

    def backward(self, s: int, k: int, *, whole: bool) -> None:
        """Run the backward of stage s, or only for its inputs, from the gradient of its output, which is here."""
        gradients = self.output_gradients.pop((s, k))
        stage = self.stages[s]
        found = stage.backward(k, gradients) if whole else stage.backward_input(k, gradients)
        if s and self._is_here(s - 1):
            self.output_gradients[s - 1, k] = found
        else:
            self.input_gradients[s, k] = found

    def backward_weight(self, s: int, k: int) -> None:
        """Run the rest of a backward that was run only for the inputs of stage s."""
        self.stages[s].backward_weight(k)
        if s in self.replicas:
            self.replicas[s].add()

    def complete_after(self, actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
        """By index in `actions`: the stages with replicas whose last backward or weight part it is."""
        last = {
            part.stage: position
            for position, part in enumerate(actions)
            if part.kind in (Kind.B, Kind.W) and part.stage in self.replicas
        }
        return {position: [s for s, at in last.items() if at == position] for position in last.values()}

    def _average(self, s: int) -> None:
        try:
            self.replicas[s].reduce(failed=self._failure is not None)
        except PeerError as error:
            self._failure = self._failure or error
        except Exception as error:  # of a communication hook
            text = f"{self._name}, stage {s}, reduction of its gradients: {type(error).__name__}: {error}"
            self._failure = StageError(text)
            self._failure.__cause__ = error

    def _check_finished(self) -> None:
        for s, stage in self.stages.items():
            if self.work.loss is not None and stage.unfinished:
                missing = ValueError("the table holds no backward, or no weight part, for it")
                self._fail(s, stage.unfinished[0], "end of the step", missing)

    # ---------------------------------------------------------------------------------- messages

    def send_output(self, s: int, k: int) -> None:
        """Send stage s's output to stage s+1 on another rank."""
        to = self.placement[s + 1]
        if self._failure is not None:
            self.link.send_failure(str(self._failure), to=to)
            self._differentiable[s + 1, k] = True
            return
        output = self.outputs.pop((s, k))
        self.link.send(output, to=to)
        self._expect_gradient(s, k, output)

    def receive_input(self, s: int, k: int) -> None:
        """Wait for stage s's input from another rank."""
        value = self.link.receive(source=self.placement[s - 1])
        # A failed sender cannot say whether a gradient must come back: both sides then assume that one does.
        self._differentiable[s, k] = isinstance(value, Failure) or _wants_gradient(value)
        if not self._dropped(value):
            self.inputs[s, k] = value

    def send_gradient(self, s: int, k: int) -> None:
        """Send the gradient of stage s's input to stage s-1 on another rank."""
        if not self._differentiable.pop((s, k)):
            return  # nothing that crossed this boundary needs a gradient: neither side sends or receives
        to = self.placement[s - 1]
        if self._failure is not None:
            self.link.send_failure(str(self._failure), to=to)
        else:
            self.link.send(list(self.input_gradients.pop((s, k))), to=to)

    def receive_gradient(self, s: int, k: int) -> None:
        """Wait for the gradient of stage s's output from another rank."""
        if not self._differentiable.pop((s + 1, k)):
            return
        value = self.link.receive(source=self.placement[s + 1])
        if not self._dropped(value):
            self.output_gradients[s, k] = value

    def _expect(self, due: Sequence[Due]) -> None:
        for source, boundary in due:
            if boundary is None or self._differentiable.get(boundary):
                self.link.expect(source=source)

    def _expect_gradient(self, s: int, k: int, output: Any) -> None:
        self._differentiable[s + 1, k] = _wants_gradient(output)
        if not self._differentiable[s + 1, k]:
            self.output_gradients[s, k] = [None] * len(leaves_of(output))

    def _dropped(self, value: Any) -> bool:
        """Whether a received value is of no use, because another rank or this one failed."""
        if isinstance(value, Failure) and self._failure is None:
            self._failure = PeerError(value.text)
        return self._failure is not None

    def _is_here(self, s: int) -> bool:
        return self.placement[s] == self.position

    def _fail(self, s: int, k: int, what: str, error: Exception) -> None:
        text = f"{self._name}, stage {s}, microbatch {k}, {what}: {type(error).__name__}: {error}"
        self._failure = StageError(text)
        self._failure.__cause__ = error


@functools.lru_cache(maxsize=64)
def _one_by_one(
    actions: tuple[Action, ...], placement: tuple[int, ...]
) -> tuple[Sequence[Action], Mapping[int, Sequence[Due]]]:
    """A list without batches, and the receives to post after each of its actions; the same at every step."""
    # Sends of a batch go first: none of them waits, so no receive can block them.
    parts = [part for action in actions for part in sorted(action.leaves, key=_is_receive)]
    return parts, receives_after(parts, placement)


def receives_after(parts: Sequence[Action], placement: Sequence[int]) -> Mapping[int, Sequence[Due]]:
    """By index in `parts`: the receives that are next between two ranks once that part is done; -1 for the beginning.

    A receive is not posted before an earlier send to the same rank in the list: if a pair of ranks
    serves its messages in order, the send would wait for it. (Nor is it known before a boundary's output is
    sent whether a gradient comes back.)
    """
    found: dict[int, list[Due]] = {}
    last: dict[int, int] = {}  # per rank, where the last message to or from it stands
    for position, part in enumerate(parts):
        s, k = part.stage, part.microbatch or 0
        if part.kind in (Kind.SEND_F, Kind.RECV_B):
            other = placement[s + 1]
        elif part.kind in (Kind.SEND_B, Kind.RECV_F):
            other = placement[s - 1]
        else:
            continue
        if _is_receive(part):
            boundary = (s + 1, k) if part.kind is Kind.RECV_B else None
            found.setdefault(last.get(other, -1), []).append((other, boundary))
        last[other] = position
    return found


def _wants_gradient(value: Any) -> bool:
    return any(leaf.requires_grad for leaf in leaves_of(value))


def _detached(tree: Any) -> Any:
    return map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tree)


def _is_receive(action: Action) -> bool:
    return action.kind in (Kind.RECV_F, Kind.RECV_B)
