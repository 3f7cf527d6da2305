"""What the operations of an execution carry: the input, output or gradient of a stage, and of which microbatch.

The memory on which an operation works shows to which forward it belongs (`pipeconform.observe.traffic.cargo`), and the
inputs of that forward, compared with the oracle's, show its microbatch. If an operation cannot be identified on its own
rank, the other end of its message identifies it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeconform.judge.evidence import Evidence
from pipeconform.judge.timeline import recogniser
from pipeconform.observe.observation import Observation

__all__ = ["Carried", "carried_by", "shared"]

_Operand = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What one operation carries."""

    what: Literal["input", "output", "input gradient", "output gradient"]
    stage: int
    microbatch: int | None = None
    """None if its forward belongs to no known microbatch."""

    def __str__(self) -> str:
        """``gradient of the output of stage 1, microbatch 3``."""
        words = f"gradient of the {self.what.split()[0]}" if "gradient" in self.what else self.what
        known = "" if self.microbatch is None else f", microbatch {self.microbatch}"
        return f"{words} of stage {self.stage}{known}"


def carried_by(evidence: Evidence) -> dict[_Operand, Carried]:
    """What operations carry, as far as their own rank shows it, by rank of the world and number."""
    return {(one.rank, number): cargo for one in evidence.shown for number, cargo in _of_rank(evidence, one)}


def shared(
    carried: Mapping[_Operand, Carried], messages: Iterable[tuple[_Operand, _Operand]]
) -> dict[_Operand, Carried]:
    """The same, completed for unidentified operations with what the other end of the message carries."""
    found = dict(carried)
    for pair in messages:
        for own, other in (pair, pair[::-1]):
            if own not in carried and other in carried:
                found[own] = carried[other]
    return found


def _of_rank(evidence: Evidence, one: Observation) -> Iterator[tuple[int, Carried]]:
    if one.traffic is None:
        return
    shown = {step.step: step for step in one.steps}
    expected = {step.step: step for step in evidence.expected.steps}
    recognise = {step: recogniser(known.inputs) for step, known in expected.items()}
    for number, cargo in one.traffic.cargo.items():
        step = one.traffic.operations[number].step
        forwards = shown[step].forwards if step in shown else ()
        same: tuple[int, ...] = ()
        if cargo.forward < len(forwards) and step in recognise:
            same = recognise[step](forwards[cargo.forward])
        yield (
            number,
            Carried(what=cargo.what, stage=cargo.stage, microbatch=same[0] if len(same) == 1 else None),
        )
