"""From a rank's events to the table that it executed: which computation of which microbatch, in which order.

The data carries no mark of its microbatch. A forward is recognised by its inputs: they equal, or are nearest to, what
the oracle's stage received for one microbatch. Backward events belong to the forward in whose graph they happen.

Not every forward counts. One that runs inside a backward is a *recomputation*; one whose inputs belong to no
microbatch, or whose result is not used, is a *probe* if it comes before the rank's first real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipeconform.case.blocks import Deferred
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence
from pipeconform.observe.observation import Event, Forward, Observation, StepShown, Structure
from pipeconform.schedule import Action, Kind

if TYPE_CHECKING:
    import torch

__all__ = ["Executed", "executed", "executed_by", "recogniser"]

Recognise = Callable[[Forward], tuple[int, ...]]
"""The microbatches whose inputs a forward may have received; empty for none."""


@dataclass(frozen=True, kw_only=True)
class Executed:
    """The computations of one rank in one step."""

    rank: int
    pipeline_rank: int
    actions: tuple[Action, ...] = ()
    """F, B, I and W in order; the whole backward of a stage that has no input part, or no weight part, is a B."""
    parts: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """The parts that a backward can have, by (stage, microbatch) that ran here: ``IW``, ``I``, ``W`` or none."""
    probes: tuple[int, ...] = ()
    """The stages of dry runs before the rank's first forward that counts."""
    recomputed: tuple[Action, ...] = ()
    """Forwards repeated inside a backward."""
    strangers: tuple[tuple[int, int], ...] = ()
    """Forwards that count but belong to no known microbatch: stage, and how many actions came before."""
    stale: tuple[int, ...] = ()
    """The stages of backwards that ran in the graph of an earlier step's forward."""
    calls: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Stage and microbatch of the forwards that count, by the number of the call."""


def executed(evidence: Evidence, step: int) -> tuple[Executed, ...]:
    """What every pipeline rank computed in one run of the program, in the order of their observations.

    Raises:
        HarnessError: The timeline was not observed.
    """
    recognise = recogniser(evidence.expected.steps[step].inputs)
    ranks = (executed_by(one, one.steps[step], recognise) for one in evidence.members)
    claim = evidence.capabilities.schedule(evidence.case.schedule)
    if claim is None or claim.split_weights == "all":
        return tuple(ranks)
    stages = evidence.case.model.stages
    whole = {s for s, one in enumerate(stages) if not any(isinstance(b, Deferred) for b in one.blocks)}
    return tuple(replace(one, parts=_joined(one.parts, whole)) for one in ranks)


def _joined(parts: Mapping[tuple[int, int], str], whole: set[int]) -> dict[tuple[int, int], str]:
    """The parts without weight parts, for stages that compute their `whole` backward where the input part is due."""
    return {(s, k): "I" if s in whole and several else several for (s, k), several in parts.items()}


def recogniser(inputs: Sequence[Sequence[tuple[Structure, ...]]]) -> Recognise:
    """A function that recognises microbatches by `inputs`, which the oracle's stages got: by stage, then by microbatch.

    If inputs are equal bit for bit, that decides. Otherwise it is the nearest microbatch, if it is nearer than half
    of the smallest distance between two of them (or between one and zero): values that differ by rounding are
    recognised, uninitialised memory and other data are not.
    """
    import torch

    points = [[_point(leaves) for leaves in stage] for stage in inputs]

    def recognise(forward: Forward) -> tuple[int, ...]:
        known = inputs[forward.stage] if forward.stage < len(inputs) else ()
        same = tuple(k for k, right in enumerate(known) if right == forward.inputs)
        if same or not known:
            return same
        mine = _point(forward.inputs)
        right = points[forward.stage]
        near = [(_distance(mine, point), k) for k, point in enumerate(right) if point.shape == mine.shape]
        apart = [
            _distance(a, b)
            for i, a in enumerate(right)
            for b in (torch.zeros_like(a), *right[:i])
            if a.shape == b.shape
        ]
        distance, k = min(near, default=(float("inf"), 0))
        return (k,) if distance < min(apart, default=0.0) / 2 else ()

    return recognise


def _point(inputs: tuple[Structure, ...]) -> torch.Tensor:
    import torch

    leaves = [leaf.tensor().reshape(-1) for value in inputs for leaf in value.leaves()]
    return torch.cat([leaf.to(torch.float64) for leaf in leaves if not leaf.is_complex()] or [torch.empty(0)])


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference of two elements; infinite if one is not a number."""
    found = float((a - b).abs().max()) if a.numel() else 0.0
    return found if found == found else float("inf")  # noqa: PLR0124 - NaN is not itself


def executed_by(one: Observation, shown: StepShown, recognise: Recognise) -> Executed:
    """What one rank computed in one step.

    Raises:
        HarnessError: The timeline was not observed.
    """
    assert one.pipeline_rank is not None
    if shown.events is None:
        raise HarnessError(f"rank {one.rank} was asked for its timeline and recorded none")
    calls = _Calls(shown.events, shown.forwards, recognise)
    actions: list[Action] = []
    strangers: list[tuple[int, int]] = []
    stale: list[int] = []
    for event, kind in _computations(shown.events, calls):
        if kind is not Kind.F and event.call not in calls.started:
            stale.append(event.stage)
        elif kind is Kind.F and event.call in calls.strange:
            strangers.append((event.stage, len(actions)))
        elif event.call in calls.counted or (kind is not Kind.F and event.call in calls.repeated):
            actions.append(Action(event.stage, kind, calls.microbatch[event.call]))
    return Executed(
        rank=one.rank,
        pipeline_rank=one.pipeline_rank,
        actions=tuple(actions),
        parts=calls.parts(),
        probes=tuple(calls.started[call].stage for call in calls.probes),
        recomputed=tuple(
            Action(calls.started[call].stage, Kind.F, calls.microbatch[call]) for call in calls.repeated
        ),
        strangers=tuple(strangers),
        stale=tuple(stale),
        calls={call: (calls.started[call].stage, calls.microbatch[call]) for call in calls.counted},
    )


def _computations(events: Sequence[Event], calls: _Calls) -> Iterator[tuple[Event, Kind]]:
    """Forwards and backwards in the order in which they began.

    All passages of one backward (graph task) through the graph of one call are one computation, and so are the
    passages of several backwards of the same kind with nothing in between: engines take weight gradients parameter by
    parameter.
    """
    kinds: dict[tuple[int, int], set[str]] = {}
    for event in events:
        if event.kind != "F":
            kinds.setdefault((event.call, event.task), set()).add(event.kind)
    done: set[tuple[int, int]] = set()
    last: tuple[int, frozenset[str]] | None = None
    for event in events:
        if event.kind == "F":
            last = None
            yield event, Kind.F
        elif (event.call, event.task) not in done:
            done.add((event.call, event.task))
            this = (event.call, frozenset(kinds[event.call, event.task]))
            if this != last:
                started = calls.started.get(event.call)
                whole = len(this[1]) > 1 or (started is not None and len(started.parts) == 1)
                yield event, Kind.B if whole else Kind[event.kind]
            last = this


class _Calls:
    """The forward calls of one step: those that count, probes, recomputations, and those of no known microbatch."""

    def __init__(self, events: Sequence[Event], forwards: Sequence[Forward], recognise: Recognise) -> None:
        recorded = {forward.call: forward for forward in forwards}
        self.started = {e.call: e for e in events if e.kind == "F" and e.call in recorded}
        """Forwards by call, without those that raised."""
        used: dict[int, int] = {}
        for event in events:
            if event.kind != "F":
                used[event.call] = max(used.get(event.call, 0), 1 + (event.kind == "W"))
        self.microbatch: dict[int, int] = {}
        times: Counter[tuple[int, int]] = Counter()
        for call, event in self.started.items():
            candidates = recognise(recorded[call])
            if candidates:
                k = min(candidates, key=lambda k, s=event.stage: (times[s, k], k))  # type: ignore[misc]
                times[event.stage, k] += 1
                self.microbatch[call] = k
        inside = [call for call, event in self.started.items() if event.task >= 0]
        self.repeated = tuple(call for call in inside if call in self.microbatch)
        """Recomputations."""
        outside = [call for call in self.started if call not in inside]
        real = self._real([call for call in outside if call in self.microbatch], used)
        first = min((outside.index(call) for call in real), default=len(outside))
        self.probes = tuple(call for call in outside[:first] if call not in real)
        later = set(outside[first:])
        self.counted = frozenset(call for call in later if call in self.microbatch)
        self.strange = later - self.counted

    def _real(self, calls: Sequence[int], used: Mapping[int, int]) -> set[int]:
        """Of calls with equal stage and microbatch, those whose graph is used most; if none is used, the last call.

        A dry run may also compute input gradients, to learn their shapes; it does not touch the weights. If it runs on
        uninitialised memory, that memory may hold an old microbatch.
        """
        alike: dict[tuple[int, int], list[int]] = {}
        for call in calls:
            alike.setdefault((self.started[call].stage, self.microbatch[call]), []).append(call)
        found: set[int] = set()
        for several in alike.values():
            most = max(used.get(call, 0) for call in several)
            found.update([call for call in several if used.get(call, 0) == most] if most else several[-1:])
        return found

    def parts(self) -> dict[tuple[int, int], str]:
        """The parts that a backward can have; a forward without a graph has those of its recomputation."""
        return {
            (self.started[call].stage, k): self.started[call].parts
            for call, k in self.microbatch.items()
            if call in self.counted or call in self.repeated
        }
