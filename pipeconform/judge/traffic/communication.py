"""The recorded communication of an execution, and what its boundaries allow."""

from __future__ import annotations

from collections import Counter

from pipeconform.case.case import Eval
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.traffic.cargo import carried_by
from pipeconform.judge.traffic.messages import Exchange, Operand, exchange
from pipeconform.observe.array import Array
from pipeconform.observe.observation import StepExpected
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.operations import Operation

__all__ = [
    "DESCRIPTION_BYTES",
    "about_operation",
    "exchange_of",
    "needed_between",
    "step_of",
    "traffic_of",
]

DESCRIPTION_BYTES = 1024
"""The bytes that may be sent with every boundary tensor, or gradient of one, to describe it."""
_DIFFERENTIABLE = ("float", "bfloat", "complex")


def needed_between(
    evidence: Evidence, expected: StepExpected
) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Bytes and number of boundary tensors and their gradients, by sender and receiver as ranks of the world."""
    ranks = evidence.case.world.pipeline_ranks
    trains = not isinstance(evidence.case.program[expected.step], Eval)
    num_bytes: Counter[tuple[int, int]] = Counter()
    tensors: Counter[tuple[int, int]] = Counter()

    def count(sender: int, receiver: int, leaf: Array) -> None:
        key = ranks[sender], ranks[receiver]
        num_bytes[key] += len(leaf.data)
        tensors[key] += 1

    for s in range(1, evidence.case.num_stages):
        for here in evidence.placement[s]:
            for there in evidence.placement[s - 1] - {here}:
                for inputs in expected.inputs[s]:
                    for leaf in (leaf for one in inputs for leaf in one.leaves()):
                        count(there, here, leaf)
                        if trains and leaf.dtype.startswith(_DIFFERENTIABLE):
                            count(here, there, leaf)
    return num_bytes, tensors


def traffic_of(evidence: Evidence) -> dict[int, Traffic]:
    """The recorded traffic by rank of the world, including bystanders."""
    return {one.rank: one.traffic for one in evidence.shown if one.traffic is not None}


def exchange_of(evidence: Evidence) -> Exchange:
    """The recorded communication of all ranks, matched."""
    return exchange(traffic_of(evidence), carried_by(evidence))


def step_of(evidence: Evidence, operation: Operation) -> int | None:
    """The step of the program in which an operation was issued; None for one before or after."""
    return operation.step if 0 <= operation.step < len(evidence.case.program) else None


def about_operation(evidence: Evidence, found: Exchange, operand: Operand, kind: str, text: str) -> Finding:
    """A finding about one operation, with the stage and microbatch that it carries."""
    step, cargo = step_of(evidence, found.operation(operand)), found.carried.get(operand)
    return Finding(
        kind=kind,
        message=text,
        step=step,
        rank=operand[0],
        stage=None if cargo is None else cargo.stage,
        microbatch=None if cargo is None else cargo.microbatch,
    )
