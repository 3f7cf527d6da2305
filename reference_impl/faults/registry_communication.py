"""The list of faults of communication."""

from __future__ import annotations

from .fault import made

__all__ = ["COMMUNICATION"]

COMMUNICATION = (
    made(
        "communication:LeftoverSend",
        "COM-1",
        "After every step the first rank sends a byte that nobody receives.",
        tells=r"rank \d's send of float32\[1\] to rank \d with tag 1, operation \d+ is never received by rank \d",
    ),
    made(
        "communication:LeftoverReceive",
        "COM-1",
        "After every step the first rank posts a receive for which nothing comes.",
        tells=r"nobody sends what rank \d's receive of float32\[1\] from rank \d with tag 1, operation \d+ would",
    ),
    made(
        "communication:DtypeReinterpreted",
        "COM-1",
        "Bytes are sent as one dtype and received as another.",
        tells=r"send of int8\[\d+\] .* is taken by rank \d's receive of uint8\[\d+\]",
    ),
    made(
        "communication:ShapeForgotten",
        "COM-1",
        "A message is sent with another number of dimensions than it is received with.",
        tells=r"send of uint8\[1, (\d+)\] .* is taken by rank \d's receive of uint8\[\1\]",
    ),
    made(
        "communication:LongerReceive",
        "COM-1",
        "Receives are posted for more bytes than are sent.",
        tells=r"send of uint8\[16\] .* is taken by rank \d's receive of uint8\[24\]",
    ),
    made(
        "communication:DefaultGroup",
        "COM-2",
        "The group of the plan is forgotten: messages travel on the default group.",
        tells=r"rank \d uses the default group for its (send|receive) of uint8\[1\]",
    ),
    made(
        "communication:WiderGroup",
        "COM-2",
        "The pipeline makes a group of its own, of all processes there are.",
        tells=r"rank \d uses a group of ranks \[0, 1, 2\] for its .*; the pipeline's ranks are \[\d, \d\]",
    ),
    made(
        "communication:ProcessTakenForGroupRank",
        "COM-2",
        "The number of a process is handed over as a rank of the group.",
        status="error",
        tells=r"rank \d raised RuntimeError",
    ),
    made(
        "communication:BystanderSpeaks",
        "COM-2",
        "All ranks there are, bystanders too, meet when a pipeline has been built.",
        tells=r"rank \d uses the default group for its allreduce",
    ),
    made(
        "races:SendsCross",
        "COM-3",
        "Two ranks that exchange something both begin with the send.",
        tells=r"(?s)in order per communicator .*rank (\d) serves its receive .* only after its send .*which needs rank",
    ),
    made(
        "races:TagsRelied",
        "COM-3",
        "Messages are taken by their tags in another order than they were sent in.",
        tells=r"(?s)in order per communicator .*with tag 2.* only after its .*with tag 1",
    ),
    made(
        "races:WaitForgotten",
        "COM-4",
        "What is received to warm up is never waited for.",
        tells=r"rank \d never waits for its receive of uint8\[1\] from rank \d",
    ),
    made(
        "races:ReadBeforeWait",
        "COM-4",
        "Tensors are taken from the buffer before the receive has been waited for.",
    ),
    made(
        "races:StampedInFlight",
        "COM-4",
        "A message is numbered after it has been handed to the transport.",
        tells=r"the memory of rank \d's send of uint8\[\d+\] to rank \d, operation \d+( \(.*\))? changed",
    ),
    made(
        "races:ClearedInFlight",
        "COM-4",
        "A receive buffer is cleared after the receive has been posted.",
        tells=r"the memory of rank \d's receive of uint8\[\d+\] from rank \d, operation \d+( \(.*\))? changed",
    ),
    made(
        "communication:Padded",
        "COM-5",
        "Every message is filled up to the size of the largest one that is allowed.",
        tells=r"rank \d sends rank \d \d+ bytes; what crosses .* has \d+ bytes in \d+ tensors",
    ),
    made(
        "communication:SentTwice",
        "COM-5",
        "Every boundary is sent twice.",
        tells=r"rank \d sends rank \d \d+ bytes; what crosses .* has \d+ bytes in \d+ tensors",
    ),
    made(
        "communication:SentToItself",
        "COM-5",
        "A rank hands something over to itself by a message.",
        status="error",
        tells=r"rank \d raised RuntimeError",
    ),
    made(
        "local:NothingCrosses",
        "COM-7",
        "Every rank computes the whole model by itself, from a state that was broadcast once.",
        tells=r"rank \d sent rank \d \d+ bytes; the (inputs|gradients) of .* have \d+ bytes, which must",
    ),
    made(
        "local:DataCrosses",
        "COM-7",
        "Inputs and targets are broadcast, as many bytes as boundaries have, and every rank computes the rest.",
        tells=r"stage \d ran on an input 0 that rank \d did not receive",
    ),
    made(
        "local:GradientsStay",
        "COM-7",
        "Values cross; the gradients that should come back are computed by the rank that needs them.",
        tells=r"rank (\d) sent rank (\d) \d+ bytes; the gradients of the outputs of stage \2 have",
    ),
    made(
        "races:StaleWhenLate",
        "COM-6",
        "A message that is late is replaced by the one before it.",
    ),
    made(
        "races:GivesUp",
        "COM-6",
        "A rank gives up when a message takes longer than a step should.",
        status="error",
        tells=r"TimeoutError: rank \d is late",
    ),
)
