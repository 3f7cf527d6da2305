"""Whether an implementation is a pipeline: what a stage needs from another rank must cross to it (COM-7)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from pipeconform.case.case import Eval
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.timeline import recogniser
from pipeconform.judge.traffic.messages import Exchange
from pipeconform.observe.observation import StepExpected

__all__ = [
    "Where",
    "something_else_is_used",
    "stays_on_one_rank",
    "too_little_crosses",
]

_DIFFERENTIABLE = ("float", "bfloat", "complex")
_FROM_THE_ROOT = {"broadcast_", "scatter_"}
"""Collectives that bring data from one rank only."""

_Pair = tuple[int, int]
"""Sender and receiver, as ranks of the world."""


class Where:
    """The pipeline ranks on which a step's computations ran, by stage and microbatch."""

    def __init__(self, evidence: Evidence, expected: StepExpected) -> None:
        self._placement = evidence.placement
        self.forwards: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        """The numbers of the forwards that had its inputs, by stage and microbatch, and by rank."""
        recognise = recogniser(expected.inputs)
        for one in evidence.members:
            for number, forward in enumerate(one.steps[expected.step].forwards):
                same = recognise(forward)
                if len(same) == 1 and one.pipeline_rank is not None:
                    self.forwards[forward.stage, same[0]][one.pipeline_rank].append(number)

    def ranks(self, stage: int, microbatch: int) -> frozenset[int]:
        """The ranks responsible for this: the stage's owner or, of several, those that did it."""
        owners = self._placement[stage]
        return owners & self.forwards[stage, microbatch].keys() if len(owners) > 1 else owners

    def rank(self, stage: int, microbatch: int) -> int | None:
        """The one rank responsible for this; None if that is not known."""
        ran = self.ranks(stage, microbatch)
        return next(iter(ran)) if len(ran) == 1 else None


def too_little_crosses(
    evidence: Evidence, expected: StepExpected, where: Where, found: Exchange
) -> Iterator[Finding]:
    """Findings where fewer bytes crossed than the tensors have that must cross."""
    ranks, crossed = evidence.case.world.pipeline_ranks, _crossed(found, expected.step)
    trains = not isinstance(evidence.case.program[expected.step], Eval)
    num_bytes: Counter[_Pair] = Counter()
    what: dict[_Pair, dict[str, None]] = defaultdict(dict)
    for s in range(1, evidence.case.num_stages):
        for k, inputs in enumerate(expected.inputs[s]):
            there, here = where.rank(s - 1, k), where.rank(s, k)
            if there is None or here is None or there == here:
                continue
            for leaf in (leaf for one in inputs for leaf in one.leaves()):
                forth, back = (ranks[there], ranks[here]), (ranks[here], ranks[there])
                num_bytes[forth] += len(leaf.data)
                what[forth][f"the inputs of stage {s}"] = None
                if trains and leaf.dtype.startswith(_DIFFERENTIABLE):
                    num_bytes[back] += len(leaf.data)
                    what[back][f"the gradients of the outputs of stage {s - 1}"] = None
    for (sender, receiver), least in num_bytes.items():
        evidence.compared()
        if crossed[sender, receiver] < least:
            text = (
                f"rank {sender} sent rank {receiver} {crossed[sender, receiver]} bytes; "
                f"{' and '.join(what[sender, receiver])} have {least} bytes, which must come from there"
            )
            kind = "nothing crosses" if not crossed[sender, receiver] else "less crosses than needed"
            yield Finding(kind=kind, message=text, step=expected.step, rank=receiver)


def _crossed(found: Exchange, step: int) -> Counter[_Pair]:
    """The most bytes that can have gone from each rank to each other rank in one step."""
    total: Counter[_Pair] = Counter()
    for message in found.messages:
        send, receive = found.operation(message.send), found.operation(message.receive)
        if send.step == step:
            total[message.send[0], message.receive[0]] += min(send.num_bytes, receive.num_bytes)
    for collective in found.collectives:
        for receiver, operand in collective.operands.items():
            own = found.operation(operand)
            senders = {own.process} if own.name in _FROM_THE_ROOT else set(collective.operands)
            if own.step == step:
                total.update(dict.fromkeys(((one, receiver) for one in senders - {receiver}), own.num_bytes))
    return total


def something_else_is_used(evidence: Evidence, expected: StepExpected, where: Where) -> Iterator[Finding]:
    """Findings where a stage computed on inputs that no operation brought to its rank."""
    for one in evidence.members:
        if one.traffic is None or one.pipeline_rank is None:
            continue
        arrived = {(a.stage, a.forward): a.tensors for a in one.traffic.arrived if a.step == expected.step}
        for (s, k), by_rank in sorted(where.forwards.items()):
            numbers = by_rank.get(one.pipeline_rank, []) if s else []
            if not numbers or where.rank(s - 1, k) in (None, one.pipeline_rank):
                continue
            known = [arrived[s, number] for number in numbers if (s, number) in arrived]
            evidence.compared(len(known))
            if known and not any(map(all, known)):
                place = next(place for place, came in enumerate(known[0]) if not came)
                text = (
                    f"stage {s} ran on an input {place} that rank {one.rank} was not seen to receive: no operation of "
                    f"torch.distributed in this step brought its bytes; it must come from stage {s - 1} on rank "
                    f"{evidence.case.world.pipeline_ranks[where.rank(s - 1, k) or 0]}"
                )
                yield Finding(
                    kind="input that did not come",
                    message=text,
                    step=expected.step,
                    rank=one.rank,
                    stage=s,
                    microbatch=k,
                )
                break


def stays_on_one_rank(evidence: Evidence, expected: StepExpected, where: Where) -> Iterator[Finding]:
    """Where stages have two owners: microbatches whose successive stages run on one rank, or one stage on both."""
    members, placement = evidence.case.world.pipeline_ranks, evidence.placement
    for s in range(evidence.case.num_stages):
        for k in range(len(expected.inputs[s])):
            ran = where.ranks(s, k) if len(placement[s]) > 1 else frozenset()
            same = ran & where.ranks(s - 1, k) if s else frozenset()
            if len(ran) < 2 and not same:
                continue
            several = " and ".join(str(members[rank]) for rank in sorted(same or ran))
            ranks = f"rank{'s' * (len(same or ran) > 1)} {several}"
            if same:
                kind, what = "stays on one rank", f"computes it for stages {s - 1} and {s}"
            else:
                kind, what = "on several ranks", f"compute it for stage {s}"
            text = f"microbatch {k} must go from rank to rank with every stage, but {ranks} {what}"
            rank = members[min(same or ran)]
            yield Finding(kind=kind, message=text, step=expected.step, rank=rank, stage=s, microbatch=k)
            return
