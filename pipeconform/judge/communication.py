"""What was sent and received: matched, on the given group, without circles, memory left alone, no more than needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeconform.case.case import Eval
from pipeconform.judge.cargo import carried_by
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.messages import Exchange, Operand, exchange
from pipeconform.judge.replay import circle
from pipeconform.judge.training import values_and_gradients_are_right
from pipeconform.observe.array import Array
from pipeconform.observe.observation import StepExpected
from pipeconform.observe.traffic.records import Traffic
from pipeconform.ranks.operations import Operation

__all__ = [
    "gets_through",
    "matched",
    "memory_in_flight_is_left_alone",
    "no_more_than_needed",
    "only_the_given_group",
    "timing_changes_nothing",
]

DESCRIPTION_BYTES = 1024
"""What may go with every boundary tensor, or gradient of one, to describe it."""
_DIFFERENTIABLE = ("float", "bfloat", "complex")


def matched(evidence: Evidence) -> Iterator[Finding]:
    """Every send has its receive, of the same look, and every member the same collectives (COM-1)."""
    found = _exchange(evidence)
    evidence.compared(
        len(found.unreceived) + len(found.unsent) + len(found.messages) + len(found.collectives)
    )
    for operand in found.unreceived:
        receiver = found.operation(operand).process
        text = f"rank {operand[0]}'s {found.named(operand)} is never received by rank {receiver}"
        yield _finding(evidence, found, operand, "send without receive", text)
    for operand in found.unsent:
        text = f"nobody sends what rank {operand[0]}'s {found.named(operand)} would receive"
        yield _finding(evidence, found, operand, "receive without send", text)
    for message in found.messages:
        send, receive = found.operation(message.send), found.operation(message.receive)
        dtypes, shapes = (
            [[getattr(tensor, what) for tensor in one.tensors] for one in (send, receive)]
            for what in ("dtype", "shape")
        )
        if dtypes[0] != dtypes[1] or shapes[0] != shapes[1]:
            kind = "dtypes differ" if dtypes[0] != dtypes[1] else "shapes differ"
            sent, taken = found.named(message.send), found.named(message.receive)
            text = f"rank {message.send[0]}'s {sent} is taken by rank {message.receive[0]}'s {taken}"
            yield _finding(evidence, found, message.receive, kind, text)
    for collective in found.collectives:
        operands = collective.operands
        looks = {rank: _look(found.operation(operand)) for rank, operand in operands.items()}
        if set(looks) != set(collective.members) or len(set(looks.values())) > 1:
            operand = min(operands.values())
            shown = "; ".join(
                f"rank {member}: {found.operation(operands[member]) if member in looks else 'nothing'}"
                for member in collective.members
            )
            yield _finding(evidence, found, operand, "collectives differ", f"members come with {shown}")


def only_the_given_group(evidence: Evidence) -> Iterator[Finding]:
    """No operation is on a group with ranks outside the pipeline, and values are right (COM-2)."""
    members = set(evidence.case.world.pipeline_ranks)
    for rank, traffic in _traffic(evidence).items():
        evidence.compared(len(traffic.operations))
        for name, ranks in traffic.groups.items():
            # where the pipeline is the whole world, the default group is a group of its members, too
            if name != traffic.given and not set(ranks) <= members:
                first = next(one for one in traffic.operations if one.group == name)
                what = "the default group" if name == traffic.default else f"a group of ranks {list(ranks)}"
                text = f"rank {rank} uses {what} for its {first}; the pipeline's ranks are {sorted(members)}"
                yield Finding(kind="another group", message=text, step=_step(evidence, first), rank=rank)
    yield from values_and_gradients_are_right(evidence.uncounted)


def gets_through(evidence: Evidence) -> Iterator[Finding]:
    """Nobody waits in a circle, first with sends that wait for their receives, then also in order (COM-3)."""
    found = _exchange(evidence)
    evidence.compared(sum(len(one.operations) for one in found.traffic.values()))
    for ordered, how in ((False, "when sends wait for their receives"), (True, "in order per communicator")):
        stuck = circle(found, ordered=ordered)
        if stuck is not None:
            text = f"{how} nobody gets on:\n" + "\n".join(f"  {one}" for one in stuck.sentences)
            kind = "circle in order" if ordered else "circle"
            yield _finding(evidence, found, stuck.operands[0], kind, text)
            return


def memory_in_flight_is_left_alone(evidence: Evidence) -> Iterator[Finding]:
    """Nothing changed in flight, every receive was waited for, and no poison was read (COM-4)."""
    found = _exchange(evidence)
    for rank, traffic in found.traffic.items():
        evidence.compared(len(traffic.operations))
        for number in traffic.overwritten:
            text = (
                f"the memory of rank {rank}'s {found.named((rank, number))} changed before its wait had ended"
            )
            yield _finding(evidence, found, (rank, number), "changed in flight", text)
        waited = {moment.operation for moment in traffic.moments if moment.kind == "wait"}
        for one in traffic.operations:
            if one.kind == "receive" and one.number not in waited:
                text = f"rank {rank} never waits for its {found.named((rank, one.number))}"
                yield _finding(evidence, found, (rank, one.number), "receive not waited for", text)
    yield from values_and_gradients_are_right(evidence.uncounted)


def no_more_than_needed(evidence: Evidence) -> Iterator[Finding]:
    """No rank sends itself anything, or another one more than the boundaries between them (COM-5)."""
    found = _exchange(evidence)
    traffic = found.traffic
    for rank, recorded in traffic.items():
        for one in recorded.operations:
            if one.kind == "send" and one.process == rank:
                text = f"rank {rank} sends itself something: {found.named((rank, one.number))}"
                yield _finding(evidence, found, (rank, one.number), "sent to itself", text)
    for expected in evidence.runs():
        allowed, tensors = _needed(evidence, expected)
        sent: Counter[tuple[int, int]] = Counter()
        for rank, recorded in traffic.items():
            for one in recorded.operations:
                if one.kind == "send" and one.step == expected.step and one.process != rank:
                    sent[rank, one.process] += one.num_bytes
        evidence.compared(len(sent))
        for (rank, other), num_bytes in sent.items():
            most = allowed[rank, other] + DESCRIPTION_BYTES * max(tensors[rank, other], 1)
            if num_bytes > most:
                text = (
                    f"rank {rank} sends rank {other} {num_bytes} bytes; what crosses between their stages in this "
                    f"direction has {allowed[rank, other]} bytes in {tensors[rank, other]} tensors, which makes "
                    f"{most} with {DESCRIPTION_BYTES} for each of them"
                )
                yield Finding(kind="more bytes than needed", message=text, step=expected.step, rank=rank)


def timing_changes_nothing(evidence: Evidence) -> Iterator[Finding]:
    """Values and gradients are right whatever was delayed (COM-6)."""
    yield from values_and_gradients_are_right(evidence)


def _needed(
    evidence: Evidence, expected: StepExpected
) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """By sender and receiver, ranks of the world: bytes and number of boundary tensors and their gradients."""
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


def _traffic(evidence: Evidence) -> dict[int, Traffic]:
    """By rank of the world; bystanders included."""
    return {one.rank: one.traffic for one in evidence.shown if one.traffic is not None}


def _exchange(evidence: Evidence) -> Exchange:
    return exchange(_traffic(evidence), carried_by(evidence))


def _look(operation: Operation) -> tuple[str, int]:
    return operation.name, operation.peer


def _step(evidence: Evidence, operation: Operation) -> int | None:
    return operation.step if 0 <= operation.step < len(evidence.case.program) else None


def _finding(evidence: Evidence, found: Exchange, operand: Operand, kind: str, text: str) -> Finding:
    step, cargo = _step(evidence, found.operation(operand)), found.carried.get(operand)
    return Finding(
        kind=kind,
        message=text,
        step=step,
        rank=operand[0],
        stage=None if cargo is None else cargo.stage,
        microbatch=None if cargo is None else cargo.microbatch,
    )
