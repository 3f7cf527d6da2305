"""Messages, groups, waiting, memory in flight, bytes and timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import BYSTANDER, DELAY, SEVERAL_RANKS
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import requirement
from pipeconform.judge.traffic.communication import (
    DESCRIPTION_BYTES,
    about_operation,
    exchange_of,
    needed_between,
    step_of,
    traffic_of,
)
from pipeconform.judge.traffic.crossing import (
    Where,
    something_else_is_used,
    stays_on_one_rank,
    too_little_crosses,
)
from pipeconform.judge.traffic.replay import circle
from pipeconform.judge.training import gradients_are_right, values_and_gradients_are_right
from pipeconform.plural import plural
from pipeconform.spec.catalogue import MUST, SHOULD, Promise

from ..promises import FULL_MODEL, documented, paper

_recorded = partial(
    requirement,
    about=(Focus.PLAIN, Focus.VARYING),
    draws=(Focus.TRAFFIC,),
    observe=("traffic",),
    condition=SEVERAL_RANKS,
    nothing="the ranks were not seen to send or receive anything",
)
"""A requirement about what is sent and received. All of these draw the same cases, so each case runs once."""


@_recorded(
    "COM-1",
    title="Matched messages",
    level=MUST,
    promise=(
        documented(
            "torch.distributed documentation, point-to-point communication",
            "distributed.html#point-to-point-communication",
        ),
        documented(
            "torch.distributed documentation, collective functions", "distributed.html#collective-functions"
        ),
    ),
)
def matched_messages(evidence: Evidence) -> Iterator[Finding]:
    """Every send is received exactly once, in the same group, with the same dtype, shape and number of bytes,
    where a number may be received as one element; none is left over when the pipeline is closed. Members of
    a group issue the same collectives in the same order.

    The next step receives a message that is left over; bytes read as another dtype still look like numbers.
    """
    found = exchange_of(evidence)
    evidence.compared(
        len(found.unreceived) + len(found.unsent) + len(found.messages) + len(found.collectives)
    )
    for operand in found.unreceived:
        receiver = found.operation(operand).process
        text = f"rank {operand[0]}'s {found.named(operand)} is never received by rank {receiver}"
        yield about_operation(evidence, found, operand, "send without receive", text)
    for operand in found.unsent:
        text = f"no rank sends what rank {operand[0]}'s {found.named(operand)} would receive"
        yield about_operation(evidence, found, operand, "receive without send", text)
    for message in found.messages:
        send, receive = found.operation(message.send), found.operation(message.receive)
        dtypes = [[tensor.dtype for tensor in one.tensors] for one in (send, receive)]
        # a number has no shape that could be mistaken: torch warms connections of traced stages up with one
        shapes = [[tuple(tensor.shape) or (1,) for tensor in one.tensors] for one in (send, receive)]
        if dtypes[0] != dtypes[1] or shapes[0] != shapes[1]:
            kind = "dtypes differ" if dtypes[0] != dtypes[1] else "shapes differ"
            sent, taken = found.named(message.send), found.named(message.receive)
            text = f"rank {message.send[0]}'s {sent} is taken by rank {message.receive[0]}'s {taken}"
            yield about_operation(evidence, found, message.receive, kind, text)
    for collective in found.collectives:
        issued = {rank: found.operation(operand) for rank, operand in collective.operands.items()}
        alike = len({(one.name, one.peer) for one in issued.values()}) < 2
        if set(issued) != set(collective.members) or not alike:
            operand = min(collective.operands.values())
            shown = "; ".join(f"rank {rank}: {issued.get(rank, 'nothing')}" for rank in collective.members)
            yield about_operation(
                evidence, found, operand, "collectives differ", f"members come with {shown}"
            )


@_recorded(
    "COM-2",
    title="The given group",
    level=MUST,
    condition=BYSTANDER,
    promise=(
        documented(
            "torch.distributed.pipelining.PipelineStage documentation, group: the process group for communication",
            "distributed.pipelining.html#torch.distributed.pipelining.stage.PipelineStage",
        ),
        documented("torch.distributed documentation, groups", "distributed.html#groups"),
    ),
)
def the_given_group(evidence: Evidence) -> Iterator[Finding]:
    """Communication stays within the pipeline's ranks: it uses the given group or groups of its members,
    never one with other ranks (such as the default group, where the pipeline is not the whole world), and
    never comes from a rank outside the pipeline. Values and gradients are right in a pipeline whose group
    does not begin at rank 0.

    The default group is the world, replicas and all; code that takes a rank of the group for a rank of the
    world passes every test that uses the whole world.
    """
    members = set(evidence.case.world.pipeline_ranks)
    for rank, traffic in traffic_of(evidence).items():
        evidence.compared(len(traffic.operations))
        for name, ranks in traffic.groups.items():
            # where the pipeline is the whole world, the default group is a group of its members, too
            if name != traffic.given and not set(ranks) <= members:
                first = next(one for one in traffic.operations if one.group == name)
                what = "the default group" if name == traffic.default else f"a group of ranks {list(ranks)}"
                text = f"rank {rank} uses {what} for its {first}; the pipeline's ranks are {sorted(members)}"
                yield Finding(kind="another group", message=text, step=step_of(evidence, first), rank=rank)
    yield from values_and_gradients_are_right(evidence.uncounted)


@_recorded(
    "COM-3",
    title="No circular waits",
    level=MUST,
    promise=(
        Promise(
            "NCCL user guide, streams and group calls",
            "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/groups.html",
        ),
        documented(
            "torch.distributed.batch_isend_irecv documentation",
            "distributed.html#torch.distributed.batch_isend_irecv",
        ),
    ),
)
def no_waiting_in_a_circle(evidence: Evidence) -> Iterator[Finding]:
    """What every rank sends, receives and waits for, in its order, gets through to the end even if a send
    does not complete before its receive has begun, and also if operations on one communicator are carried out
    in the order of issue: single sends and receives on the communicator of their two ranks, batches (whose
    operations all begin together) and collectives on that of the group.

    Gloo takes messages in any order. On one NCCL communicator the same program may wait forever.
    """
    found = exchange_of(evidence)
    evidence.compared(sum(len(one.operations) for one in found.traffic.values()))
    for ordered, how in ((False, "when sends wait for their receives"), (True, "in order per communicator")):
        stuck = circle(found, ordered=ordered)
        if stuck is not None:
            text = f"{how} no rank makes progress:\n" + "\n".join(f"  {one}" for one in stuck.sentences)
            kind = "circle in order" if ordered else "circle"
            yield about_operation(evidence, found, stuck.operands[0], kind, text)
            return


@_recorded(
    "COM-4",
    title="Memory in flight",
    level=MUST,
    promise=documented(
        "torch.distributed documentation, isend and irecv", "distributed.html#torch.distributed.isend"
    ),
)
def memory_in_flight(evidence: Evidence) -> Iterator[Finding]:
    """Before an operation has been waited for, the memory of a receive is not read and that of a send is not
    changed; every receive is waited for. Until the wait has ended, receive buffers hold poison.

    A buffer that is read too early now and then holds what the previous microbatch left in it.
    """
    found = exchange_of(evidence)
    for rank, traffic in found.traffic.items():
        evidence.compared(len(traffic.operations))
        for number in traffic.overwritten:
            text = (
                f"the memory of rank {rank}'s {found.named((rank, number))} changed before its wait had ended"
            )
            yield about_operation(evidence, found, (rank, number), "changed in flight", text)
        waited = {moment.operation for moment in traffic.moments if moment.kind == "wait"}
        for one in traffic.operations:
            if one.kind == "receive" and one.number not in waited:
                text = f"rank {rank} never waits for its {found.named((rank, one.number))}"
                yield about_operation(evidence, found, (rank, one.number), "receive not waited for", text)
    yield from values_and_gradients_are_right(evidence.uncounted)


@_recorded(
    "COM-5",
    title="No more than needed",
    level=SHOULD,
    promise=paper(
        "GPipe (arXiv:1811.06965), section 2.2: only boundary tensors cross between neighbouring partitions"
    ),
)
def no_more_than_needed(evidence: Evidence) -> Iterator[Finding]:
    """In a step, one rank sends another no more bytes than the boundaries between their stages and the
    gradients of these boundaries have, plus 1024 bytes for each of them to describe it; a rank sends nothing
    to itself.

    A pipeline is meant to save traffic between nodes; a boundary sent twice, or in a wider dtype, undoes
    that.
    """
    found = exchange_of(evidence)
    traffic = found.traffic
    for rank, recorded in traffic.items():
        for one in recorded.operations:
            if one.kind == "send" and one.process == rank:
                text = f"rank {rank} sends itself something: {found.named((rank, one.number))}"
                yield about_operation(evidence, found, (rank, one.number), "sent to itself", text)
    for expected in evidence.runs():
        allowed, tensors = needed_between(evidence, expected)
        sent: Counter[tuple[int, int]] = Counter()
        for rank, recorded in traffic.items():
            for one in recorded.operations:
                if one.kind == "send" and one.step == expected.step and one.process != rank:
                    sent[rank, one.process] += one.num_bytes
        evidence.compared(len(sent))
        for (rank, other), num_bytes in sent.items():
            most = allowed[rank, other] + DESCRIPTION_BYTES * max(tensors[rank, other], 1)
            if num_bytes > most:
                text = f"rank {rank} sends rank {other} {num_bytes} bytes"
                text += (
                    f", and rank {other} is no neighbour of rank {rank}: nothing crosses between their stages"
                    if not tensors[rank, other] and not tensors[other, rank]
                    else "; what crosses between their stages in this "
                    f"direction has {allowed[rank, other]} bytes in {plural(tensors[rank, other], 'tensor')}, which "
                    f"makes {most} with {DESCRIPTION_BYTES} for each of them"
                )
                yield Finding(kind="more bytes than needed", message=text, step=expected.step, rank=rank)


@requirement(
    "COM-6",
    title="Independent of timing",
    level=MUST,
    about=(Focus.DELAYED,),
    costly=True,
    by_schedule=True,
    condition=DELAY,
    promise=(
        FULL_MODEL,
        documented(
            "torch.distributed documentation, isend and irecv: a result may be used once its request has completed",
            "distributed.html#torch.distributed.isend",
        ),
    ),
)
def independent_of_timing(evidence: Evidence) -> Iterator[Finding]:
    """A delay on any rank, before or after any computation, send or receive, and a rank that is stopped for a
    while change no output, loss or gradient.

    A result that depends on which rank is faster is right on the machine on which it was tested.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@_recorded(
    "COM-7",
    title="What is needed crosses",
    level=MUST,
    promise=paper("definition of pipeline parallelism, arXiv:1811.06965"),
)
def what_is_needed_crosses(evidence: Evidence) -> Iterator[Finding]:
    """In every step, what a stage needs from a stage on another rank comes from there: from rank to rank, at
    least as many bytes cross as the tensors of the boundaries between their stages have, and in training, in
    the other direction, at least as many as those of these tensors have that need a gradient. A stage
    computes on values that operations of torch.distributed brought to its rank in that step, as they are: in
    their dtype, not compressed, in one operation or in several. What crosses in another way, such as sockets,
    is not seen. Where a stage lies on two ranks, one of them computes a given microbatch, and another rank
    computes its next stage. Parameters, inputs, targets and keyword arguments that a rank does not own have
    other values there.

    An implementation in which every rank computes the whole model by itself gives the right outputs,
    gradients and orders everywhere, but is not a pipeline.
    """
    found = exchange_of(evidence)
    for expected in evidence.runs():
        where = Where(evidence, expected)
        short = list(too_little_crosses(evidence, expected, where, found))
        yield from short or something_else_is_used(evidence, expected, where)
        yield from stays_on_one_rank(evidence, expected, where)
