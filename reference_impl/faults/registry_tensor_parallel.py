"""The list of faults of stages that are cut over ranks, and of norms that replicas share."""

from __future__ import annotations

from .fault import made

__all__ = ["TENSOR_PARALLEL"]

TENSOR_PARALLEL = (
    made(
        "tensor_parallel:LocalPartsAsWholes",
        "DPC-7",
        "Gradients are returned as plain tensors: nothing says that they are parts.",
        tells=r"parameter blocks\.\d\.[\w.]+ of stage \d is .* on rank \d, its gradient a plain tensor",
    ),
    made(
        "tensor_parallel:PartialTakenForWhole",
        "DPC-7",
        "What every rank contributes to a gradient is taken for the gradient; the contributions are never added up.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's",
    ),
    made(
        "tensor_parallel:AveragedOverParts",
        "DPC-7",
        "The ranks that have a stage's parts are taken for replicas: their gradients are averaged.",
        tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's",
    ),
    made(
        "tensor_parallel:OtherDataOnEveryPart",
        "DPC-7",
        "Every part of a stage works on another microbatch, as replicas would.",
        tells=r"the (output of microbatch \d|gradient of [\w.]+ in stage \d) is not the reference's",
    ),
    made(
        "tensor_parallel:PartsOfTheNeighbour",
        "DPC-7",
        "Every rank has the part of the next one: the layers of a block still fit together.",
        tells=r"(?s)the (output of microbatch \d|(gradient|parameter) of [\w.]+ in stage \d) is not the reference's",
    ),
    made(
        "tensor_parallel:NotCut",
        "DPC-7",
        "Every rank has the whole of its stages.",
        tells=r"parameter blocks\.\d\.[\w.]+ of stage \d is a plain tensor on rank \d",
    ),
    made(
        "tensor_parallel:AxesExchanged",
        "DPC-7",
        "Stages are cut over the replicas, and their gradients are averaged over the parts.",
        tells=r"parameter blocks\.\d\.[\w.]+ of stage \d is .*, which has part \d of 2; the plan cuts it",
    ),
    made(
        "tensor_parallel:PlacementLost",
        "FWD-19",
        "A stage is given the part that was sent, as a plain tensor.",
        tells=r"the input of stage 1 is a plain tensor .* handed over as a DTensor placed",
    ),
    made(
        "tensor_parallel:PartAsWhole",
        "FWD-19",
        "A stage is given the part that was sent as if every rank had been sent the same.",
        tells=r"the input of stage 1 is a DTensor placed R .* handed over as a DTensor placed S\(\d\)",
    ),
    made(
        "tensor_parallel:GatheredOnTheWay",
        "FWD-19",
        "A stage is given the whole tensor on every rank: right values, and more memory than was planned for.",
        tells=r"the input of stage 1 is a DTensor placed R .* handed over as a DTensor placed S\(\d\)",
    ),
    made(
        "tensor_parallel:PartsExchanged",
        "FWD-19",
        "A stage's ranks are each given the part of the next one.",
        tells=r"input 0 of stage 1 \(microbatch \d\) did not arrive unchanged",
    ),
    made(
        "synchronised:OtherOrderOnLaterReplicas",
        "DPC-9",
        "All replicas but the first run their microbatches from the last to the first: each alone is right.",
        tells=r"the (output|loss) of microbatch \d is not the reference's",
    ),
    made(
        "synchronised:NormsOnTheirOwn",
        "DPC-9",
        "Batch norms lose the group over which they are to be synchronised.",
        tells=r"the buffer of blocks\.\d\.norm\.running_\w+ in stage \d is not the reference's",
    ),
    made(
        "synchronised:TriedFirst",
        "DPC-9",
        "Every stage runs the first microbatch once to see what comes out, on all replicas alike.",
        tells=r"the buffer of blocks\.\d\.norm\.\w+ in stage \d is not the reference's",
    ),
    made(
        "synchronised:TriedOnOneReplica",
        "DPC-9",
        "Only the first replica runs the first microbatch once more: the others' statistics are a forward behind.",
        status="hung",
    ),
)
